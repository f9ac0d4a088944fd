"""The settings that a caller gives, in layers: a ``generation_config``, and what was asked for by name above it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightbeam.deploy.errors import Fix, GenerationError

__all__ = [
    "CALL",
    "CHECKPOINT",
    "COMMAND_LINE",
    "GENERATION_CONFIG",
    "LINE",
    "REQUEST",
    "Layer",
    "caller_layers",
    "merged",
    "read_generation_config",
    "settings_of",
    "with_source",
]

GENERATION_CONFIG = "generation_config"
"""Keyword whose value holds settings: layers, or what `read_generation_config` makes one of."""
CHECKPOINT = "the checkpoint's generation config"
CALL, COMMAND_LINE, LINE, REQUEST = "the call", "the command line", "the line", "the request"
EXAMPLE = '{"num_beams": 4}'


@dataclass(frozen=True, eq=False)
class Layer:
    """Settings from one source. A layer is equal to itself alone, so that what is made of it can be cached.

    Attributes
    ----------
    source : str
        The place that the settings are from, as errors name it.
    values : mapping
        Values by transformers' field names. None is "not set".
    asked : bool
        True if somebody asked for each of these by name. A config has fields that nobody thought of.
    """

    source: str
    values: Mapping[str, Any]
    asked: bool = False

    def error(self, name: str, problem: str = "", *, expected: str = "", fix: Fix | str = "") -> GenerationError:
        """Return the error about one of the layer's settings."""
        value = self.values[name]
        return GenerationError(problem, field=name, value=value, source=self.source, expected=expected, fix=fix)


def read_generation_config(given: object) -> Layer:
    """Read the settings of a ``generation_config``.

    A field that is None leaves the checkpoint's value, as in ``model.generate(generation_config=...)`` of
    transformers 5, where a `GenerationConfig` holds None for each field that nobody set.

    Parameters
    ----------
    given : GenerationConfig, mapping, str, path or Layer
        An object with ``to_dict`` such as transformers' `GenerationConfig`; settings by field name; or the name of a
        JSON file of them. A `Layer` is returned as it is.

    Returns
    -------
    Layer

    Raises
    ------
    GenerationError
        The value has another type, or the file cannot be read.
    """
    if isinstance(given, Layer):
        return given
    source, values = GENERATION_CONFIG, given
    if isinstance(given, str | os.PathLike):
        source, values = str(given), _read_file(Path(given))
    elif callable(to_dict := getattr(given, "to_dict", None)) and not isinstance(given, type):
        values = to_dict()
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        fix = f"pass a GenerationConfig, a dict such as {EXAMPLE}, or the name of a JSON file"
        raise GenerationError("holds no settings by name", field=GENERATION_CONFIG, value=given, fix=fix)
    return Layer(source, {name: value for name, value in values.items() if value is not None})


def caller_layers(settings: Mapping[str, Any], source: str = CALL) -> tuple[Layer, ...]:
    """Read a caller's settings as layers, each of which overrides the one before it.

    Parameters
    ----------
    settings : mapping
        Settings by name. Their ``generation_config``, if any, is below the others: layers, or an argument of
        `read_generation_config`.
    source : str
        Source of the settings above the ``generation_config``.

    Raises
    ------
    GenerationError
        ``generation_config`` cannot be read.
    """
    config = settings.get(GENERATION_CONFIG)
    own = {name: value for name, value in settings.items() if name != GENERATION_CONFIG}
    below: tuple[Layer, ...] = ()
    if isinstance(config, tuple) and config and all(isinstance(layer, Layer) for layer in config):
        below = config
    elif config is not None:
        below = (read_generation_config(config),)
    return (*below, Layer(source, own, asked=True)) if own else below


def with_source(settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the same settings as layers of a ``generation_config``, which have the source. Raises GenerationError."""
    return settings_of(caller_layers(settings, source))


def settings_of(given: Sequence[Layer]) -> dict[str, Any]:
    """Return layers as the settings of a caller."""
    return {GENERATION_CONFIG: tuple(given)} if given else {}


def merged(given: Sequence[Layer]) -> dict[str, Any]:
    """Return the values of layers; a later layer overrides an earlier one."""
    return {name: value for layer in given for name, value in layer.values.items()}


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise GenerationError(f"there is no file {path}; pass a JSON file such as {EXAMPLE}") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise GenerationError(f"cannot read {path}: {reason}; pass a JSON file such as {EXAMPLE}") from None
    except (ValueError, RecursionError) as error:
        raise GenerationError(f"cannot read {path} as JSON ({error}); pass a file such as {EXAMPLE}") from None
    if not isinstance(values, dict):
        raise GenerationError(f"{path} holds no JSON object; expected settings such as {EXAMPLE}")
    return values
