"""A GGUF file as a checkpoint: a folder with the config and the tokenizer that its header describes, and a link to it.

transformers reads all three; the packages gguf and accelerate are in the extra ``gguf``. Integers of a quantized file
become the floats that they stand for.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tightbeam.export.checkpoint.config import CONFIG_FILE
from tightbeam.export.checkpoint.weight_files import GGUF_FILE
from tightbeam.export.errors import ExportError, first_line

__all__ = ["checkpoint_of"]

PACKAGES = ("gguf", "accelerate")
LAYER = ("attn_q", "attn_k", "attn_v", "attn_output", "attn_norm", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
COMMON = frozenset(f"{name}.weight" for name in ("token_embd", "output_norm", "output", *LAYER))
ARCHITECTURES = {
    "llama": COMMON,
    "qwen2": COMMON | {"attn_q.bias", "attn_k.bias", "attn_v.bias"},
    "qwen3": COMMON | {"attn_q_norm.weight", "attn_k_norm.weight"},
}
"""Architectures as llama.cpp names them (a Mistral is a ``llama``), and the tensors that transformers reads of each,
without their layers. It skips others in silence."""
UNREAD = ("rope.scaling.", "expert_count", "attention.sliding_window", "attention.scale", "logit_scale")
"""Keys of an architecture that change what the model says, and that transformers does not read."""
NEUTRAL = (0, "none")
NO_TOKENIZER = "no_vocab"
SPECIAL = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "padding_token_id": "pad_token_id",
}


@contextmanager
def checkpoint_of(model: str | os.PathLike[str]) -> Iterator[str | os.PathLike[str]]:
    """Give a model for the functions that take an alias, a hub id or a folder: a .gguf file as a temporary folder.

    Parameters
    ----------
    model
        An alias, a hub id, a folder, or the path of a .gguf file.

    Raises
    ------
    ExportError
        The file does not exist or cannot be read, its architecture is not supported, or a package is missing.
    """
    path = Path(model).expanduser()
    if path.suffix.lower() != ".gguf" or path.is_dir():
        yield model
        return
    if not path.is_file():
        raise ExportError(f"{path}: no such file; give a .gguf file, a checkpoint folder, a hub id, or an alias")
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent).resolve() / path.stem  # the default name of the bundle begins with it
        folder.mkdir()
        try:
            (folder / GGUF_FILE).symlink_to(path.resolve())
        except OSError:  # Windows lets few users make one
            shutil.copyfile(path, folder / GGUF_FILE)
        try:
            _describe(path.resolve(), folder)
            yield folder
        except ExportError as error:
            raise ExportError(str(error).replace(str(folder), str(path))) from error


def _describe(path: Path, folder: Path) -> None:
    """Write the config and the tokenizer of a file. Raises ExportError."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(
            f"{path.name}: reading GGUF needs the package {missing[0]}, which is not installed; pip install "
            f"'tightbeam[export,gguf]', or make a folder of it where {' and '.join(PACKAGES)} are: {_conversion(path)}"
        )
    import transformers
    from transformers.integrations.gguf.reader import read_gguf_metadata

    from tightbeam.export.checkpoint.quiet import panics_as_errors, quiet_transformers

    try:
        with quiet_transformers(), panics_as_errors():
            keys, tensors = read_gguf_metadata(str(path))
            _check(path, keys, tensors)
            where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
            config = transformers.AutoConfig.from_pretrained(**where, local_files_only=True)
            if keys.get("tokenizer.ggml.model", NO_TOKENIZER) != NO_TOKENIZER:
                tokenizer = transformers.AutoTokenizer.from_pretrained(**where, local_files_only=True)
                tokenizer.save_pretrained(folder)
    except ExportError:
        raise
    except Exception as error:  # readers of a damaged file raise struct.error, IndexError, MemoryError and others
        raise ExportError(
            f"{path}: not readable as GGUF ({first_line(error)}); fetch it again, or give the checkpoint that it was "
            "made of"
        ) from error
    fields = config.to_dict()
    fields |= {name: keys.get(f"tokenizer.ggml.{key}") for key, name in SPECIAL.items()}
    if (width := keys.get(f"{keys['general.architecture']}.attention.key_length")) is not None:
        fields["head_dim"] = width
    (folder / CONFIG_FILE).write_text(json.dumps(fields), "utf-8")


def _check(path: Path, keys: Mapping[str, Any], tensors: tuple[str, ...]) -> None:
    """Raise ExportError for a file that transformers would read as another model."""
    architecture = keys["general.architecture"]
    if architecture not in ARCHITECTURES:
        raise ExportError(
            f"{path}: the architecture of this file is {architecture!r}, and {', '.join(ARCHITECTURES)} are read from "
            "GGUF; give the checkpoint that it was made of, as a folder of safetensors"
        )
    found = [
        name
        for name, value in keys.items()
        if name.removeprefix(f"{architecture}.").startswith(UNREAD) and value not in NEUTRAL
    ]
    found += [name for name in tensors if re.sub(r"^blk\.\d+\.", "", name) not in ARCHITECTURES[architecture]]
    if found:
        raise ExportError(
            f"{path}: {found[0]} changes what the model says, and transformers does not read it from GGUF; give the "
            "checkpoint that the file was made of, as a folder of safetensors"
        )


def _conversion(path: Path) -> str:
    """The command that makes a checkpoint's folder of a file."""
    at = f"{json.dumps(str(path.parent))}, gguf_file={json.dumps(path.name)}"
    code = "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T; " + "; ".join(
        f"{own}.from_pretrained({at}).save_pretrained({json.dumps(path.stem)})" for own in ("M", "T")
    )
    return f"python -c {shlex.quote(code)}"
