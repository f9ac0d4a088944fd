"""Safetensors files -> torch model, whose tensors are all there, of the right shapes and finite."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open

from tightbeam.export.checkpoint.config import CONFIG_FILE, read_json
from tightbeam.export.errors import ExportError, first_line
from tightbeam.export.families.base import Family

__all__ = ["WEIGHTS_FILE", "check_weight_files", "load_model"]

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

BOOKKEEPING = re.compile(r"(^|\.)(encoder|decoder)\.version$|\.attn\.masked_bias$|\.rotary_emb\.inv_freq$")
"""Tensors of old checkpoints that no model reads: fairseq's version counters, GPT-2's score of masked positions,
Llama's frequencies."""


def check_weight_files(folder: Path) -> None:
    """Raise ExportError unless every weight file is present, inside the folder, whole and a safetensors file."""
    if (folder / WEIGHTS_FILE).exists():
        shards = {WEIGHTS_FILE}
    elif (folder / INDEX_FILE).exists():
        shards = _shards_of(folder)
    else:
        pickled = sorted(path.name for path in folder.glob("*.bin") if path.name.startswith("pytorch_model"))
        if pickled:
            raise ExportError(
                f"{folder}: only {pickled[0]}, and pickled weights are not read; convert them on a machine where you "
                "trust the file: load with transformers' from_pretrained, then save_pretrained writes safetensors"
            )
        raise ExportError(
            f"{folder}: no weights; expected {WEIGHTS_FILE}, or shards with {INDEX_FILE} (where the hub has pickled "
            "weights alone, convert them: from_pretrained, then save_pretrained, and export that folder)"
        )
    if (folder / "adapter_config.json").exists():
        raise ExportError(f"{folder}: holds an adapter (adapter_config.json); merge it into the model and save that")
    for shard in sorted(shards):
        try:
            with safe_open(folder / shard, framework="pt") as file:
                file.keys()
        except (SafetensorError, OSError, ValueError) as error:
            raise ExportError(
                f"{folder / shard}: damaged or truncated safetensors file ({first_line(error)}); fetch it again"
            ) from error


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


def load_model(family: Family, config: Any, folder: Path) -> Any:
    """The family's transformers model, float32, in eval mode, without gradients.

    Raises ExportError for a missing, extra or wrongly shaped tensor, and for NaN or infinite weights.
    """
    model_class = getattr(transformers, family.architecture)
    try:
        model, report = model_class.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            attn_implementation="sdpa" if model_class._supports_sdpa else "eager",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            ignore_mismatched_sizes=True,  # reported below, with all other errors at once
            output_loading_info=True,
        )
    except Exception as error:
        raise ExportError(
            f"{folder}: transformers cannot load it ({first_line(error)}); restore the checkpoint"
        ) from error
    errors = [
        f"{name} has shape {list(found)}, expected {list(expected)}"
        for name, found, expected in sorted(report["mismatched_keys"])
    ]
    errors += [
        f"{name} is missing, expected shape {list(model.get_parameter_or_buffer(name).shape)}"
        for name in sorted(set(report["missing_keys"]) - set(family.computed_weights))
    ]
    errors += [
        f"{name} is not part of {family.architecture}"
        for name in sorted(report["unexpected_keys"])
        if not BOOKKEEPING.search(name)
    ]
    if errors:
        raise ExportError(
            f"{folder}: weights do not fit {CONFIG_FILE}: {_listed(errors)}; restore the weights or the config"
        )
    not_finite = [name for name, tensor in model.state_dict().items() if not torch.isfinite(tensor).all()]
    if not_finite:
        raise ExportError(
            f"{folder}: NaN or infinite weights in {_listed(not_finite)}; restore or retrain the checkpoint"
        )
    return model.eval().requires_grad_(False)


def _listed(items: Iterable[str], shown: int = 3) -> str:
    listed = list(items)
    rest = len(listed) - shown
    return "; ".join(listed[:shown]) + (f"; and {rest} more" if rest > 0 else "")
