"""The safetensors files of a checkpoint, checked without torch: present, inside the folder and whole."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from safetensors import SafetensorError, safe_open

from tightbeam.export.checkpoint.config import read_json
from tightbeam.export.errors import ExportError, first_line

__all__ = ["GGUF_FILE", "WEIGHTS_FILE", "check_weight_files", "gguf_of"]

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
GGUF_FILE = "model.gguf"
"""Link to the weights of a checkpoint that is a GGUF file."""


def check_weight_files(folder: Path, architecture: str, hub_id: str | None = None) -> None:
    """Check that every weight file is present, inside the folder, whole and a safetensors file.

    Parameters
    ----------
    folder
        The checkpoint.
    architecture
        transformers' class of the model, which converts pickled weights.
    hub_id
        The hub id of a checkpoint that was downloaded, without the weights that are not read.

    Raises
    ------
    ExportError
        A file is missing or damaged, the weights are pickled, or the folder holds an adapter.
    """
    if (folder / "adapter_config.json").exists():
        raise ExportError(f"{folder}: holds an adapter (adapter_config.json); merge it into the model and save that")
    if gguf_of(folder):
        return
    if (folder / WEIGHTS_FILE).exists():
        shards = {WEIGHTS_FILE}
    elif (folder / INDEX_FILE).exists():
        shards = _shards_of(folder)
    else:
        pickled = sorted(path.name for path in folder.glob("*.bin") if path.name.startswith("pytorch_model"))
        if pickled:
            raise ExportError(
                f"{folder}: only {pickled[0]}, and pickled weights are not read, since they can run code; if you trust "
                f"the file, add {WEIGHTS_FILE} by {_conversion(architecture, str(folder))}"
            )
        if hub_id is not None:
            own = hub_id.rpartition("/")[2]
            raise ExportError(
                f"{hub_id}: no {WEIGHTS_FILE} on the hub, and pickled weights are not read, since they can run code; "
                f"if you trust those of the hub: hf download {hub_id} --local-dir {own} && "
                f"{_conversion(architecture, own)} && export-model {own}"
            )
        raise ExportError(f"{folder}: no weights; expected {WEIGHTS_FILE}, or shards with {INDEX_FILE}")
    for shard in sorted(shards):
        try:
            with safe_open(folder / shard, framework="np") as file:
                file.keys()
        except (SafetensorError, OSError, ValueError) as error:
            raise ExportError(
                f"{folder / shard}: damaged or truncated safetensors file ({first_line(error)}); fetch it again"
            ) from error


def gguf_of(folder: Path) -> str | None:
    """The name of the GGUF file with a checkpoint's weights; None for safetensors."""
    return GGUF_FILE if (folder / GGUF_FILE).exists() and not (folder / WEIGHTS_FILE).exists() else None


def _conversion(architecture: str, folder: str) -> str:
    """The command that writes the weights of a folder as safetensors beside its other files."""
    path = json.dumps(folder, ensure_ascii=False)
    code = f"from transformers import {architecture} as M; M.from_pretrained({path}).save_pretrained({path})"
    return f"python -c {shlex.quote(code)}"


def _shards_of(folder: Path) -> set[str]:
    index = folder / INDEX_FILE
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise ExportError(f"{index}: weight_map must map tensor names to shard files; restore the file")
    shards = set(weight_map.values())
    for shard in sorted(shards):
        if shard != Path(shard).name or "\\" in shard or shard in ("", ".", ".."):
            raise ExportError(f"{index}: {shard!r} points outside the folder; shards must be plain file names")
        if not shard.endswith(".safetensors"):
            raise ExportError(f"{index}: {shard!r} is not a safetensors file; only safetensors are read")
        if not (folder / shard).is_file():
            raise ExportError(f"{index}: names {shard}, which is missing; fetch it again")
    return shards
