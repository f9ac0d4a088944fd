"""Settings of translators of many languages: the languages of source and target, by name.

The checkpoint's settings have the ids of the languages' tokens as ``lang_to_id``, if the tokenizer has such tokens, and
``language_begins`` if the target's token begins the output (SeamlessM4T).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tightbeam.deploy.errors import Constant, Fix, short_repr
from tightbeam.deploy.generation.layers import Layer, caller_layers

__all__ = [
    "AUTO",
    "BEGINNING",
    "BEGINS",
    "LANGUAGES",
    "asks_for_language",
    "check_without_text",
    "from_language",
    "token_of",
    "translation_layers",
]

LANGUAGES, BEGINS = "lang_to_id", "language_begins"
AUTO = "auto"
"""The source language of a text whose language is to be found."""
SOURCE, TARGET = "source_language", "target_language"
START, FIRST, BEGINNING = "decoder_start_token_id", "forced_bos_token_id", "decoder_input_ids"
READ_HERE = (LANGUAGES, BEGINS, SOURCE, TARGET)
SHOWN = 12
"""Languages that an error lists."""
LONGEST_NAME = 100
"""Characters of an unknown name that are compared with the languages."""


def translation_layers(given: Sequence[Layer]) -> list[Layer]:
    """Put the token of the target language in the place of its name.

    It is the start token if the checkpoint's own is a language (mBART's first models), or with ``language_begins`` the
    beginning of the output, and otherwise the token that is forced after the start token.

    Parameters
    ----------
    given : sequence of Layer
        The checkpoint's settings, with `LANGUAGES`, and the caller's.

    Returns
    -------
    list of Layer

    Raises
    ------
    GenerationError
        A language is unknown, a layer names the target twice, by its language and by the token's id, or the output
        begins with other tokens.
    """
    languages: Mapping[str, int] = given[0].values[LANGUAGES]
    field = START if given[0].values.get(START) in languages.values() else FIRST
    if given[0].values.get(BEGINS):
        field = BEGINNING
    found: list[Layer] = []
    chosen: tuple[Layer, int] | None = None
    for layer in given:
        values = {name: value for name, value in layer.values.items() if name not in READ_HERE}
        if layer.values.get(SOURCE) not in (None, AUTO):
            token_of(SOURCE, layer, languages)
        language = layer.values.get(TARGET)
        if language is not None:
            if values.get(field) is not None:
                problem = f"and {field}={short_repr(values[field])} both name the target"
                raise layer.error(TARGET, problem, fix="leave one out")
            token = token_of(TARGET, layer, languages)
            values[field] = [token] if field == BEGINNING else token
            chosen = layer, token
        found.append(replace(layer, values=values))
    if chosen is not None and field == FIRST:
        _check_beginning(given, *chosen)
    return found


def _check_beginning(given: Sequence[Layer], chosen: Layer, token: int) -> None:
    """Raise GenerationError if the tokens that the output begins with leave no place for the target's."""
    begun = [layer.values[BEGINNING] for layer in given if layer.values.get(BEGINNING) is not None]
    if not begun or not isinstance(begun[-1], list | tuple):
        return
    start = next((layer.values[START] for layer in reversed(given) if layer.values.get(START) is not None), None)
    tokens = list(begun[-1])
    after = tokens[1:] if tokens[:1] == [start] else tokens
    if after and after[0] != token:
        problem = f"does nothing, since {BEGINNING}={short_repr(tokens)} begin with another token"
        raise chosen.error(TARGET, problem, fix=f"begin them with {token}, or leave one out")


def asks_for_language(defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> bool:
    """Return True if a translator's settings ask for the language of the text by ``source_language=auto``."""
    if not defaults.get(LANGUAGES):
        return False
    asked = [layer.values[SOURCE] for layer in caller_layers(overrides) if layer.values.get(SOURCE) is not None]
    return bool(asked) and asked[-1] == AUTO


def from_language(ids: Sequence[int], defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> list[int]:
    """Put the token of the settings' ``source_language`` into the token ids of a source text.

    Parameters
    ----------
    ids : sequence of int
        Token ids as the tokenizer gives them, with the token of its own language first or last.
    defaults, overrides : mapping
        The checkpoint's settings, and the caller's.

    Returns
    -------
    list of int
        The same ids if no source language is asked for.

    Raises
    ------
    GenerationError
        The language is unknown, or the tokenizer gives no language.
    """
    tokens = list(ids)
    languages: Mapping[str, int] = defaults.get(LANGUAGES, {})
    asked = [layer for layer in caller_layers(overrides) if layer.values.get(SOURCE) is not None]
    if not asked or not languages:
        return tokens
    wanted = token_of(SOURCE, asked[-1], languages)
    known = set(languages.values())
    places = [place for place in (0, len(tokens) - 1) if tokens and tokens[place] in known]
    if not places:
        problem = "does nothing, since this model's tokenizer gives a text no language"
        raise asked[-1].error(SOURCE, problem, fix="leave it out")
    tokens[places[0]] = wanted
    return tokens


def check_without_text(overrides: Mapping[str, Any]) -> None:
    """Raise GenerationError for a ``source_language`` beside token ids, which name their language themselves."""
    for layer in caller_layers(overrides):
        if layer.asked and layer.values.get(SOURCE) is not None:
            problem = "is for texts; token ids have the token of their language themselves"
            raise layer.error(SOURCE, problem, fix="leave it out")


def token_of(name: str, layer: Layer, languages: Mapping[str, int]) -> int:
    """Return the token of the language that a setting names, in any case. Raises GenerationError."""
    language, fix = layer.values[name], Fix("pass a name such as {}", Constant(min(languages)))
    if isinstance(language, str):
        by_name = {known.lower(): token for known, token in languages.items()}
        if language.lower() in by_name:
            return by_name[language.lower()]
        close = difflib.get_close_matches(language[:LONGEST_NAME], languages, 3)
        fix = Fix(f"did you mean {', '.join(close)}?" if close else f"pass one of {_listed(sorted(languages))}")
    raise layer.error(name, expected="a language of this model", fix=fix)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
