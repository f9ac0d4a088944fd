"""The settings that a caller gives: keyword arguments, and a ``generation_config`` below them."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightbeam.deploy.errors import GenerationError

__all__ = ["CALL", "CHECKPOINT", "GENERATION_CONFIG", "Layer", "layers", "merged", "read_generation_config"]

GENERATION_CONFIG = "generation_config"
"""Keyword whose value holds settings: a `Layer`, or what `read_generation_config` makes one of."""
CHECKPOINT = "the checkpoint's generation config"
CALL = "the call"
EXAMPLE = '{"num_beams": 4}'


@dataclass(frozen=True)
class Layer:
    """Settings by transformers' field names, and their source as error messages name it. None is "not set"."""

    source: str
    values: Mapping[str, Any]


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
        It is none of these, or the file cannot be read.
    """
    if isinstance(given, Layer):
        return given
    source, values = GENERATION_CONFIG, given
    if isinstance(given, str | os.PathLike):
        source, values = str(given), _read_file(Path(given))
    elif callable(to_dict := getattr(given, "to_dict", None)) and not isinstance(given, type):
        values = to_dict()
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise GenerationError(
            f"generation_config={reprlib.repr(given)} holds no settings by name; pass a GenerationConfig, a dict such "
            f"as {EXAMPLE}, or the name of a JSON file"
        )
    return Layer(source, {name: value for name, value in values.items() if value is not None})


def layers(defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> list[Layer]:
    """The settings of the checkpoint, of ``generation_config`` where ``overrides`` has one, and of the call.

    A later layer overrides an earlier one. Raises GenerationError.
    """
    config = overrides.get(GENERATION_CONFIG)
    call = {name: value for name, value in overrides.items() if name != GENERATION_CONFIG}
    between = [] if config is None else [read_generation_config(config)]
    return [Layer(CHECKPOINT, defaults), *between, Layer(CALL, call)]


def merged(given: list[Layer]) -> dict[str, Any]:
    """The values of layers, the later ones first."""
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
