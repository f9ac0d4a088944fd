"""``config.json`` and ``generation_config.json``: read, and checked before any weight is."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers.generation.configuration_utils import METADATA_FIELDS

from tightbeam.export.errors import ExportError, causes, first_line
from tightbeam.export.families.base import Family
from tightbeam.export.families.table import FAMILIES

__all__ = [
    "CONFIG_FILE",
    "GENERATION_FILE",
    "family_of",
    "generation_settings",
    "load_config",
    "read_json",
    "settings_file",
]

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
SPECIAL_IDS = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
)
NOT_ABOUT_TOKENS = frozenset(
    {
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "output_logits",
        "return_dict_in_generate",
    }
)
"""Generation settings that change what `generate` returns beside the tokens, never the tokens themselves."""


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
        raise ExportError(
            f"{folder / CONFIG_FILE}: model_type is {model_type!r}; supported families: {', '.join(sorted(by_type))}"
        )
    architectures = config_json.get("architectures")
    if architectures and (not isinstance(architectures, list) or family.architecture not in architectures):
        raise ExportError(
            f"{folder / CONFIG_FILE}: architectures is {architectures}; only {family.architecture} generates text; "
            f"load it with transformers.{family.architecture}.from_pretrained and save it with save_pretrained"
        )
    if config_json.get("quantization_config"):
        raise ExportError(f"{folder / CONFIG_FILE}: a quantized checkpoint; give the original float weights")
    return family


def load_config(family: Family, config_json: dict[str, Any], folder: Path) -> Any:
    """transformers' config of a checkpoint. Raises ExportError for values that contradict one another or the family."""
    path = folder / CONFIG_FILE
    model_class = getattr(transformers, family.architecture)
    try:
        config = model_class.config_class.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the strict config classes raise types of their own for wrong values
        reason = textwrap.shorten(first_line(list(causes(error))[-1]), 300, placeholder=" ...")
        zeros = [name for name, value in config_json.items() if type(value) is int and value == 0 and "_id" not in name]
        if isinstance(error, ZeroDivisionError) and zeros:
            reason = f"{' or '.join(zeros)} is 0, by which transformers divides"
        raise ExportError(f"{path}: {reason}; correct the value") from error

    for reason in family.config_errors(config):
        raise ExportError(f"{path}: {reason}")
    _check_special_ids(path, vars(config), family.sizes(config).vocabulary)
    return config


def _check_special_ids(path: Path, settings: Mapping[str, Any], vocabulary: int) -> None:
    for field in SPECIAL_IDS:
        value = settings.get(field)
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is not None and not (isinstance(token_id, int) and 0 <= token_id < vocabulary):
                raise ExportError(
                    f"{path}: {field} is {token_id!r}, outside the vocabulary of {vocabulary}; correct the id"
                )


def settings_file(folder: Path) -> Path:
    """The file that holds a checkpoint's generation settings: in old checkpoints, config.json."""
    own = folder / GENERATION_FILE
    return own if own.exists() else folder / CONFIG_FILE


def generation_settings(family: Family, model: Any, folder: Path, vocabulary: int) -> dict[str, Any]:
    """The generation settings that a checkpoint makes, as JSON values, unknown names included.

    Raises ExportError for settings that the family cannot have, and for token ids outside the vocabulary.
    """
    # transformers folds the settings of an old-style config.json into model.generation_config
    settings: dict[str, Any] = json.loads(model.generation_config.to_json_string(use_diff=True, ignore_metadata=True))
    source = settings_file(folder)
    if source.name == GENERATION_FILE:
        for name, value in read_json(source).items():  # transformers drops unknown names, which the runner must refuse
            if value is not None and name not in METADATA_FIELDS:
                settings.setdefault(name, value)
    for reason in family.generation_errors(model.generation_config):
        raise ExportError(f"{source}: {reason}")
    if getattr(model.config, "forced_decoder_ids", None):  # Whisper's prompt, where old checkpoints have it
        settings.setdefault("forced_decoder_ids", model.config.forced_decoder_ids)
    _check_special_ids(source, settings, vocabulary)
    return {name: value for name, value in settings.items() if name not in NOT_ABOUT_TOKENS}
