"""Settings of translators of many languages: the languages of source and target, by name.

The checkpoint's settings have the ids of the languages' tokens as ``lang_to_id``, where the tokenizer has such tokens.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.layers import Layer, layers

__all__ = ["LANGUAGES", "check_without_text", "from_language", "translation_layers"]

LANGUAGES = "lang_to_id"
SOURCE, TARGET = "source_language", "target_language"
START, FIRST, BEGINNING = "decoder_start_token_id", "forced_bos_token_id", "decoder_input_ids"
SHOWN = 12
"""Languages that an error lists."""


def translation_layers(given: Sequence[Layer]) -> list[Layer]:
    """Settings with the target language as the token that the model takes it from.

    That is the start token where the checkpoint's own is a language (mBART's first models), and the token forced after
    it otherwise.

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
        A language is unknown; a layer names the target by its language and by the token's id; or the output begins with
        other tokens.
    """
    languages: Mapping[str, int] = given[0].values[LANGUAGES]
    field = START if given[0].values.get(START) in languages.values() else FIRST
    found: list[Layer] = []
    chosen: tuple[object, int] | None = None
    for layer in given:
        values = {name: value for name, value in layer.values.items() if name not in (LANGUAGES, SOURCE, TARGET)}
        if layer.values.get(SOURCE) is not None:
            token_of(SOURCE, layer.values[SOURCE], languages, layer.source)
        language = layer.values.get(TARGET)
        if language is not None:
            if values.get(field) is not None:
                raise GenerationError(
                    f"{TARGET}={reprlib.repr(language)} and {field}={reprlib.repr(values[field])} both name the target "
                    f"(from {layer.source}); leave one out"
                )
            values[field] = token_of(TARGET, language, languages, layer.source)
            chosen = language, values[field]
        found.append(replace(layer, values=values))
    if chosen is not None and field == FIRST:
        _check_beginning(given, *chosen)
    return found


def _check_beginning(given: Sequence[Layer], language: object, token: int) -> None:
    """Raise GenerationError where the tokens that the output begins with leave no place for the target's."""
    begun = [layer.values[BEGINNING] for layer in given if layer.values.get(BEGINNING) is not None]
    if not begun or not isinstance(begun[-1], list | tuple):
        return
    start = next((layer.values[START] for layer in reversed(given) if layer.values.get(START) is not None), None)
    tokens = list(begun[-1])
    after = tokens[1:] if tokens[:1] == [start] else tokens
    if after and after[0] != token:
        raise GenerationError(
            f"{TARGET}={reprlib.repr(language)} does nothing, since {BEGINNING}={reprlib.repr(tokens)} begin with "
            f"another token; begin them with {token}, or leave one out"
        )


def from_language(ids: Sequence[int], defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> list[int]:
    """Token ids of a source text, with the language's token that ``source_language`` of the settings asks for.

    Parameters
    ----------
    ids : sequence of int
        As the tokenizer gives them, with its own language's token first or last.
    defaults, overrides : mapping
        The checkpoint's settings, and the caller's.

    Raises
    ------
    GenerationError
        The language is unknown, or the tokenizer gives no language.
    """
    tokens = list(ids)
    languages: Mapping[str, int] = defaults.get(LANGUAGES, {})
    asked = [layer for layer in layers({}, overrides) if layer.values.get(SOURCE) is not None]
    if not asked or not languages:
        return tokens
    wanted = token_of(SOURCE, asked[-1].values[SOURCE], languages, asked[-1].source)
    known = set(languages.values())
    places = [place for place in (0, len(tokens) - 1) if tokens and tokens[place] in known]
    if not places:
        name = reprlib.repr(asked[-1].values[SOURCE])
        raise GenerationError(f"{SOURCE}={name}: this model's tokenizer gives a text no language; leave it out")
    tokens[places[0]] = wanted
    return tokens


def check_without_text(overrides: Mapping[str, Any]) -> None:
    """Raise GenerationError for a ``source_language`` of a source that is token ids, which name their language."""
    for layer in layers({}, overrides):
        if layer.asked and layer.values.get(SOURCE) is not None:
            raise GenerationError(
                f"{SOURCE}={reprlib.repr(layer.values[SOURCE])} (from {layer.source}) is for texts; token ids have the "
                "token of their language themselves: leave it out"
            )


def token_of(name: str, language: object, languages: Mapping[str, int], source: str) -> int:
    """The token of a language by its name, whatever the case. Raises GenerationError."""
    if isinstance(language, str):
        by_name = {known.lower(): token for known, token in languages.items()}
        if language.lower() in by_name:
            return by_name[language.lower()]
        close = difflib.get_close_matches(language, languages, 3)
        fix = f"did you mean {', '.join(close)}?" if close else f"it has {_listed(sorted(languages))}"
    else:
        fix = f"pass a name such as {min(languages)!r}"
    raise GenerationError(f"{name}={reprlib.repr(language)} (from {source}) is no language of this model; {fix}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
