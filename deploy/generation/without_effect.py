"""Settings that are accepted and have no effect: they are taken out of what a caller gives, and each gets a note."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tightbeam.deploy.errors import short_repr
from tightbeam.deploy.generation.fields import DORMANT, INERT, SAMPLING, WARPERS
from tightbeam.deploy.generation.layers import CALL, Layer, caller_layers, merged, settings_of

__all__ = ["remove_settings_without_effect"]

SAMPLED = frozenset({*SAMPLING, *WARPERS})
"""Fields that are read while sampling."""
OF_FILES = frozenset({"_from_model_config", "_commit_hash", "transformers_version"})
"""Fields of a saved config that ask for nothing."""
SPEECH = frozenset({"return_segments", "encoder_no_repeat_ngram_size"})
"""Fields of Whisper that are accepted and have no effect."""


def remove_settings_without_effect(
    settings: Mapping[str, Any],
    *,
    speech: bool,
    source: str = CALL,
    defaults: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Take the settings without effect out of a caller's settings.

    These are `INERT` fields, and `DORMANT` ones in a ``generation_config``: it may be a checkpoint's, and
    transformers does not read them either. Settings of sampling, such as ``temperature``, stay, and get a note if
    nothing is sampled.

    Parameters
    ----------
    settings : mapping
        Arguments of ``model.generate``, with or without a ``generation_config``.
    speech : bool
        True for a speech model.
    source : str
        Source of the settings, as error messages name it.
    defaults : mapping, optional
        The checkpoint's settings, if they are known.

    Returns
    -------
    settings : dict
        The other settings, as layers of a ``generation_config`` with their sources.
    notes : list of str
        One line for each setting that asks for something.

    Raises
    ------
    GenerationError
        ``generation_config`` cannot be read.
    """
    inert = INERT | SPEECH if speech else INERT
    given = caller_layers(settings, source)
    unread = (
        SAMPLED if defaults is not None and not merged([Layer("", defaults), *given]).get("do_sample") else frozenset()
    )
    kept: list[Layer] = []
    notes: list[str] = []
    for layer in given:
        values, more = _split(layer, inert if layer.asked else inert | (DORMANT.keys() - SAMPLED))
        kept += [replace(layer, values=values)] if values else []
        notes += more
        notes += [] if layer.asked else _split(layer, unread)[1]
    return settings_of(kept), notes


def _split(layer: Layer, ignored: frozenset[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of a layer that are not in ``ignored``, and notes on the others."""
    kept, notes = {}, []
    for name, value in layer.values.items():
        if name not in ignored:
            kept[name] = value
        elif not _asks_nothing(name, value):
            reason = ", since nothing is sampled" if name in SAMPLED else ""
            notes.append(f"{name}={short_repr(value)} (from {layer.source}) has no effect here{reason}")
    return kept, notes


def _asks_nothing(name: str, value: Any) -> bool:
    """Return True for a value that is the same as leaving the field out."""
    if name in OF_FILES or value is None:
        return True
    neutral = {**DORMANT, **SAMPLING}.get(name, (name == "use_cache",))
    return any(type(value) is type(same) and value == same for same in neutral)
