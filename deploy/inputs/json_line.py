"""A line that is a JSON object: a text or token ids in one field, and settings for this line alone in the others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tightbeam.deploy.errors import JSON, CallerError, GenerationError, InputError, short_repr
from tightbeam.deploy.generation.layers import GENERATION_CONFIG, LINE, Layer, caller_layers, settings_of
from tightbeam.deploy.generation.without_effect import remove_settings_without_effect
from tightbeam.deploy.text.truncation import Truncation, checked_truncation

__all__ = [
    "TRUNCATE",
    "check_json_size",
    "in_json",
    "json_object",
    "json_value",
    "read_json_line",
    "read_settings",
    "settings_of_line",
]

TRUNCATE = "truncate"
MOST_CHARACTERS = 1 << 22
"""Bound on the length of a JSON text, as on that of a conversation."""
MOST_MARKS = {'"': 1 << 17, "{": 1 << 14, ":": 1 << 15, "[": 1 << 16, ",": 1 << 17}
"""Bounds on the marks of a JSON text outside of its texts. They bound the objects that Python makes of it, some hundred
bytes a mark, before it makes any."""
ONE_LIMIT = (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens"))
"""Settings that limit the same length. A line that has one of a pair overrides both, from any source."""


def read_json_line(text: str, field: str) -> tuple[Any, dict[str, Any]]:
    """Read a line.

    Parameters
    ----------
    text
        The line.
    field
        The name of the field that holds the source.

    Returns
    -------
    source
        The value of that field.
    settings : dict
        The other fields.

    Raises
    ------
    InputError
        The line is not a JSON object, has a field twice, or lacks ``field``.
    """
    example = json.dumps({field: "...", "num_beams": 4})
    settings = json_object(text)
    if settings is None:
        raise InputError(f"not a JSON object; expected a line such as {example}")
    if field not in settings:
        held = short_repr(list(settings)) if settings else "none"
        raise InputError(f"no field {field!r} among {held}; expected a line such as {example}")
    return settings.pop(field), settings


def read_settings(value: Any, field: str) -> dict[str, Any]:
    """Read the settings that one field holds together.

    Parameters
    ----------
    value
        An object, the text of a JSON object, or None for no settings.
    field
        The field's name, for errors.

    Raises
    ------
    InputError
        The value is something else, or has a setting twice.
    """
    settings = json_object(value) if isinstance(value, str) else {} if value is None else value
    if not isinstance(settings, dict):
        raise InputError(f'{field} is {short_repr(value)}, expected an object of settings such as {{"num_beams": 4}}')
    return settings


def settings_of_line(
    own: Mapping[str, Any], common: Mapping[str, Any], truncate: Truncation, *, speech: bool = False
) -> tuple[dict[str, Any], Truncation, list[str]]:
    """Put the settings of a line above the settings of all lines.

    Parameters
    ----------
    own
        Fields of the line: arguments of ``model.generate``, and ``truncate``.
    common
        Settings of all lines.
    truncate
        Whether, and at which side, texts are cut if the line does not say.
    speech
        True for a model with Whisper's settings.

    Returns
    -------
    settings : dict
        Layers, which remember their sources.
    truncate : bool or str
    notes : list of str
        One note for each setting of the line that has no effect.

    Raises
    ------
    InputError, GenerationError
        A field has a wrong type. Its value is checked later, when the settings are resolved.
    """
    own = dict(own)
    truncate = checked_truncation(own.pop(TRUNCATE, truncate))
    if GENERATION_CONFIG in own:
        raise GenerationError(f"{GENERATION_CONFIG} is not a field of a line; write its settings into the line")
    effective, notes = remove_settings_without_effect(own, speech=speech, source=LINE)
    overridden = {name for limits in ONE_LIMIT if own.keys() & set(limits) for name in limits}
    below = [_without(layer, overridden) for layer in caller_layers(common)]
    return settings_of([*below, *caller_layers(effective)]), truncate, notes


def in_json(error: CallerError) -> CallerError:
    """Return the error of a line with a fix in JSON."""
    return type(error)(error.written_for(JSON))


def _without(layer: Layer, names: set[str]) -> Layer:
    if not names & layer.values.keys():
        return layer  # the same object, since resolved settings are cached by it
    return replace(layer, values={name: value for name, value in layer.values.items() if name not in names})


def json_object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; return None if the text is not one. Raises InputError for a field that occurs twice."""
    try:
        record = json_value(text)
    except InputError:
        raise
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def json_value(text: str) -> Any:
    """Parse JSON.

    Raises InputError for a text that is too large or has a field twice, ValueError or RecursionError if it is not JSON.
    """
    check_json_size(text)
    return json.loads(text, object_pairs_hook=_fields)


def check_json_size(text: str) -> None:
    """Raise InputError for a JSON text of which Python would make too large objects."""
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"the JSON has {len(text):,} characters, expected {MOST_CHARACTERS:,} at most; shorten it")
    if all(text.count(mark) <= most for mark, most in MOST_MARKS.items()):
        return
    bare = text.replace("\\\\", "").replace('\\"', "")
    if bare.count('"') <= MOST_MARKS['"']:
        bare = "".join(bare.split('"')[::2])  # what is outside of texts
    for mark, most in MOST_MARKS.items():
        if (count := bare.count(mark)) > most:
            raise InputError(f"the JSON has {count:,} marks {mark!r}, expected {most:,} at most; send less in a line")


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a JSON object. Raises InputError for one that occurs twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise InputError(f"the field {short_repr(twice)} stands twice; expected it once")
    return fields
