"""A checkpoint's folder -> transformers' config, torch model and generation settings."""

from __future__ import annotations

import io
import json
import re
import textwrap
from collections.abc import Iterable
from contextlib import nullcontext, redirect_stderr
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.generation.configuration_utils import METADATA_FIELDS

from tightbeam.export.checkpoint.config import (
    CONFIG_FILE,
    GENERATION_FILE,
    check_special_ids,
    read_json,
    settings_file,
)
from tightbeam.export.checkpoint.weight_files import gguf_of
from tightbeam.export.errors import ExportError, causes, first_line
from tightbeam.export.families.base import Family

__all__ = ["generation_settings", "load_config", "load_model"]

NOT_ABOUT_TOKENS = frozenset(
    {
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_scores",
        "output_logits",
        "return_dict_in_generate",
        "text_decoder_lang_to_code_id",
        "t2u_lang_code_to_id",
        "vocoder_lang_code_to_id",
        "id_to_text",
        "char_to_id",
    }
)
"""Generation settings that change what `generate` returns beside the tokens, never the tokens themselves, and
SeamlessM4T's tables, of which a bundle has the languages as its tokenizer names them."""


BOOKKEEPING = re.compile(
    r"(^|\.)(encoder|decoder)\.version$|embed_positions\.(_float_tensor|weights)$"
    r"|\.attn\.(masked_)?bias$|\.rotary_emb\.inv_freq$"
)
"""Tensors of old checkpoints that no model reads: fairseq's version counters, type and table of sinusoidal positions,
GPT-2's causal mask and score of masked positions, Llama's frequencies."""


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
    check_special_ids(path, vars(config), family.sizes(config).vocabulary)
    return config


def load_model(family: Family, config: Any, folder: Path) -> Any:
    """The family's transformers model, float32, in eval mode, without gradients.

    Raises ExportError for a missing, extra or wrongly shaped tensor, and for NaN or infinite weights.
    """
    model_class = getattr(transformers, family.architecture)
    try:
        with redirect_stderr(io.StringIO()) if gguf_of(folder) else nullcontext():  # its bar cannot be switched off
            model, report = model_class.from_pretrained(
                folder,
                config=config,
                dtype=torch.float32,
                attn_implementation=family.attention(model_class),
                use_safetensors=True,
                gguf_file=gguf_of(folder),
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
        if not BOOKKEEPING.search(name) and not (family.unread_weights and re.search(family.unread_weights, name))
    ]
    if errors:
        raise ExportError(
            f"{folder}: weights do not fit {CONFIG_FILE}: {_listed(errors)}; restore the weights or the config"
        )
    family.complete(model)
    not_finite = [name for name, tensor in model.state_dict().items() if not _is_finite(tensor)]
    if not_finite:
        raise ExportError(
            f"{folder}: NaN or infinite weights in {_listed(not_finite)}; restore or retrain the checkpoint"
        )
    return model.eval().requires_grad_(False)


def _is_finite(tensor: torch.Tensor) -> bool:
    """True without NaN and infinity. They leave their mark on the sum, which takes a twentieth of the time of a look at
    each number; a sum of large numbers may be infinite too."""
    return bool(torch.isfinite(tensor.sum()) or torch.isfinite(tensor).all())


def _listed(items: Iterable[str], shown: int = 3) -> str:
    listed = list(items)
    rest = len(listed) - shown
    return "; ".join(listed[:shown]) + (f"; and {rest} more" if rest > 0 else "")


def generation_settings(family: Family, model: Any, folder: Path, vocabulary: int) -> dict[str, Any]:
    """The generation settings that a checkpoint makes, as JSON values, unknown names included.

    Raises ExportError for settings that the family cannot have, and for token ids outside the vocabulary.
    """
    # transformers folds the settings of an old-style config.json into model.generation_config
    settings: dict[str, Any] = json.loads(model.generation_config.to_json_string(use_diff=True, ignore_metadata=True))
    source = settings_file(folder)
    if source.name == GENERATION_FILE:
        written = read_json(source)
        # `generate` also reads names outside GenerationConfig (Whisper's tables), and unknown names must be
        # refused. With `_from_model_config`, transformers itself drops them.
        for name, value in {} if written.get("_from_model_config") else written.items():
            if value is not None and name not in METADATA_FIELDS:
                settings.setdefault(name, value)
    for reason in family.generation_errors(model.generation_config):
        raise ExportError(f"{source}: {reason}")
    if getattr(model.config, "forced_decoder_ids", None):  # Whisper's prompt in old checkpoints
        settings.setdefault("forced_decoder_ids", model.config.forced_decoder_ids)
    check_special_ids(source, settings, vocabulary)
    return {name: value for name, value in settings.items() if name not in NOT_ABOUT_TOKENS}
