"""The safetensors files of a checkpoint, checked without torch: present, inside the folder and whole."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from tightbeam.export.checkpoint.config import read_json
from tightbeam.export.errors import ExportError, first_line

__all__ = ["WEIGHTS_FILE", "check_weight_files"]

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


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
            with safe_open(folder / shard, framework="np") as file:
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
