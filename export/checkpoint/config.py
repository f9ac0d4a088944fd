"""``config.json`` and ``generation_config.json`` as JSON, checked without transformers."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightbeam.export.errors import ExportError, first_line
from tightbeam.export.families.base import Family
from tightbeam.export.families.refused import REFUSED
from tightbeam.export.families.table import FAMILIES

__all__ = [
    "AUDIO",
    "CONFIG_FILE",
    "GENERATION_FILE",
    "IMAGES",
    "check_run_settings",
    "check_special_ids",
    "family_of",
    "feature_settings",
    "longest_output",
    "read_json",
    "settings_file",
]

CONFIG_FILE = "config.json"
AUDIO, IMAGES = "feature_extractor", "image_processor"
"""Names under which ``processor_config.json`` holds the settings of a feature extractor and of an image processor."""
PROCESSOR_FILE = "processor_config.json"
GENERATION_FILE = "generation_config.json"
SPECIAL_IDS = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a checkpoint. Raises ExportError."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(f"{path}: not readable as JSON ({first_line(error)}); restore the file") from error
    if not isinstance(content, dict):
        raise ExportError(f"{path}: expected a JSON object, found {type(content).__name__}; restore the file")
    return content


def family_of(config_json: dict[str, Any], folder: Path) -> Family:
    """The family that a config's ``model_type`` names.

    Raises ExportError for another model type or architecture, and for a quantized checkpoint.
    """
    model_type = config_json.get("model_type")
    by_type = {family.model_type: family for family in FAMILIES}
    family = by_type.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        found = f"model_type is {model_type!r}" if "model_type" in config_json else "there is no model_type"
        if isinstance(model_type, str) and model_type in REFUSED:
            raise ExportError(f"{folder / CONFIG_FILE}: {found}: {REFUSED[model_type]}")
        raise ExportError(f"{folder / CONFIG_FILE}: {found}; supported families: {', '.join(sorted(by_type))}")
    architectures = config_json.get("architectures")
    if architectures and not (isinstance(architectures, list) and _generates(architectures, family.architecture)):
        raise ExportError(
            f"{folder / CONFIG_FILE}: architectures is {architectures}; only {family.architecture} generates text; "
            f"load it with transformers.{family.architecture}.from_pretrained and save it with save_pretrained"
        )
    if config_json.get("quantization_config"):
        raise ExportError(f"{folder / CONFIG_FILE}: a quantized checkpoint; give the original float weights")
    return family


def _generates(architectures: list[Any], expected: str) -> bool:
    """True if one of a config's architectures has the weights of the expected one.

    It may be spelt as in an old release (``MPTForCausalLM`` of MPT-7B, ``T5WithLMHeadModel`` of T5-3B). The model
    without its head (``BartModel`` of bart-large) has all weights if the head is tied to the embeddings; if it is
    not, the missing tensor is an error.
    """
    name = re.sub(
        r"(ForConditionalGeneration|ForCausalLM|ForTextToText|LMHeadModel|MTModel|Model)$", "", expected
    ).lower()
    known = {expected.lower(), f"{name}model", f"{name}withlmheadmodel"}
    return any(isinstance(given, str) and given.lower() in known for given in architectures)


def check_special_ids(path: Path, settings: Mapping[str, Any], vocabulary: int) -> None:
    """Raise ExportError for a special token's id outside the vocabulary."""
    for field in SPECIAL_IDS:
        value = settings.get(field)
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is not None and not (isinstance(token_id, int) and 0 <= token_id < vocabulary):
                raise ExportError(
                    f"{path}: {field} is {token_id!r}, outside the vocabulary of {vocabulary}; correct the id"
                )


def check_run_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Raise ExportError for beams or lengths that are not positive integers."""
    for field in ("num_beams", "max_new_tokens", "max_length"):
        value = settings.get(field)
        if value is not None and not (type(value) is int and 1 <= value < 2**31):
            raise ExportError(f"{path}: {field} is {reprlib.repr(value)}; expected a whole number of at least 1")


def settings_file(folder: Path) -> Path:
    """The file that holds a checkpoint's generation settings: in old checkpoints, config.json."""
    own = folder / GENERATION_FILE
    return own if own.exists() else folder / CONFIG_FILE


def feature_settings(folder: Path, name: str, part: str = AUDIO) -> tuple[Path, dict[str, Any]]:
    """The settings of a speech model's feature extractor, or of an image processor, and the file that holds them.

    transformers 5 writes them into ``processor_config.json``, under the name ``part``, and takes them from there
    first; earlier versions wrote the file ``name``. Raises ExportError if neither can be read.
    """
    processor = folder / PROCESSOR_FILE
    nested = read_json(processor).get(part) if processor.exists() else None
    if nested is None:
        return folder / name, read_json(folder / name)
    if not isinstance(nested, dict):
        raise ExportError(f"{processor}: {part} is not a JSON object; restore the file")
    return processor, nested


def longest_output(generation: Mapping[str, Any], max_target: int) -> int:
    """T, the longest output with these generation defaults, in tokens that the cache holds."""
    new_tokens = generation.get("max_new_tokens") or (generation.get("max_length") or 21) - 1
    return int(min(new_tokens, max_target))
