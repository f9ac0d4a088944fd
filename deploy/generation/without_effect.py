"""Settings that are accepted and have no effect: they are taken out of what a caller gives, and each gets a note."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tightbeam.deploy.generation.fields import DORMANT, INERT
from tightbeam.deploy.generation.given import CALL, Layer, caller_layers, settings_of

__all__ = ["remove_settings_without_effect"]

OF_FILES = frozenset({"_from_model_config", "_commit_hash", "transformers_version"})
"""Fields that a saved config carries, which ask for nothing."""
SPEECH = frozenset(
    """return_segments return_token_timestamps compression_ratio_threshold logprob_threshold
    encoder_no_repeat_ngram_size""".split()
)
"""Fields of Whisper that are accepted and have no effect."""


def remove_settings_without_effect(
    settings: Mapping[str, Any], *, speech: bool, source: str = CALL
) -> tuple[dict[str, Any], list[str]]:
    """Take the settings that have no effect out of a caller's.

    These are `INERT` fields, such as ``output_scores``, and `DORMANT` ones, such as ``temperature``, in a
    ``generation_config``: it may be that of a checkpoint, and transformers does not read them without sampling either.

    Parameters
    ----------
    settings : mapping
        Arguments of ``model.generate``, ``generation_config`` among them.
    speech : bool
        True for a speech model.
    source : str
        Source of the settings, as error messages name it.

    Returns
    -------
    settings : dict
        The others, as layers of a ``generation_config``, which remember their sources.
    notes : list of str
        One line for each setting that asks for something.

    Raises
    ------
    GenerationError
        ``generation_config`` cannot be read.
    """
    inert = INERT | SPEECH if speech else INERT
    kept: list[Layer] = []
    notes: list[str] = []
    for layer in caller_layers(settings, source):
        values, more = _split(layer, inert if layer.asked else inert | DORMANT.keys())
        kept += [replace(layer, values=values)] if values else []
        notes += more
    return settings_of(kept), notes


def _split(layer: Layer, ignored: frozenset[str]) -> tuple[dict[str, Any], list[str]]:
    """The settings of a layer that are not in ``ignored``, and notes on those that are."""
    kept, notes = {}, []
    for name, value in layer.values.items():
        if name not in ignored:
            kept[name] = value
        elif not _asks_nothing(name, value):
            reason = ", since nothing is sampled" if name in DORMANT else ""
            notes.append(f"{name}={reprlib.repr(value)} (from {layer.source}) has no effect here{reason}")
    return kept, notes


def _asks_nothing(name: str, value: Any) -> bool:
    """True for a value that is the same as leaving the field out."""
    if name in OF_FILES or value is None:
        return True
    neutral = DORMANT.get(name, (name == "use_cache",))
    return any(type(value) is type(same) and value == same for same in neutral)
