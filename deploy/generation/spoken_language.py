"""Settings of speech models whose output begins with tokens of the language: languages by code or name, punctuation.

The checkpoint's settings have the tokens by the code of the language spoken as ``language_prompts``. If the text may be
in another language (Canary), ``language_prompt_target`` is the place of its token in each of these prompts.
``language_prompt_unpunctuated`` is a place, and the token in it that asks for a text without punctuation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tightbeam.deploy.errors import Fix, Setting, short_repr
from tightbeam.deploy.generation.languages import NAMES, names_of
from tightbeam.deploy.generation.layers import Layer
from tightbeam.deploy.generation.translation import BEGINNING

__all__ = ["LANGUAGE", "PROMPTS", "TARGET", "TARGET_AT", "UNPUNCTUATED", "spoken_language", "spoken_layers"]

LANGUAGE, TARGET, PUNCTUATION = "language", "target_language", "punctuation"
PROMPTS = "language_prompts"
TARGET_AT, UNPUNCTUATED = "language_prompt_target", "language_prompt_unpunctuated"
READ_HERE = (LANGUAGE, TARGET, PUNCTUATION, PROMPTS, TARGET_AT, UNPUNCTUATED)


def spoken_layers(given: Sequence[Layer]) -> list[Layer]:
    """Put the tokens of languages and punctuation in the place of their names, as the beginning of the output.

    Parameters
    ----------
    given : sequence of Layer
        The checkpoint's settings, with `PROMPTS`, and the caller's.

    Returns
    -------
    list of Layer
        The beginning is in the last layer with one of these settings.

    Raises
    ------
    GenerationError
        A language is unknown or missing, this model has no such choice, or a layer has another beginning of the output
        too.
    """
    checkpoint = given[0].values
    _check_bundle(given[0])
    asked: dict[str, Layer] = {}
    found: list[Layer] = []
    for layer in given:
        _check_names(layer, checkpoint)
        own = [name for name in (LANGUAGE, TARGET, PUNCTUATION) if layer.values.get(name) is not None]
        values = {name: value for name, value in layer.values.items() if name not in READ_HERE}
        if own:
            asked |= dict.fromkeys(own, layer)
            if values.get(BEGINNING) is not None:
                problem = f"and {BEGINNING}={short_repr(values[BEGINNING])} both begin the output"
                raise layer.error(own[0], problem, fix="leave one out")
            values[BEGINNING] = _prompt(checkpoint, asked)
        found.append(replace(layer, values=values))
    return found


def spoken_language(generation: Mapping[str, Any], beginning: Sequence[int | None]) -> str | None:
    """Return the code of the language spoken, of the tokens that an output begins with; None if they name none."""
    anywhere = {generation.get(TARGET_AT), *generation.get(UNPUNCTUATED, ())[:1]}
    for code, prompt in generation.get(PROMPTS, {}).items():
        end = beginning[-len(prompt) :]
        if len(end) == len(prompt) and all(
            place in anywhere or own == token for place, (own, token) in enumerate(zip(end, prompt, strict=True))
        ):
            return str(code)
    return None


def _prompt(checkpoint: Mapping[str, Any], asked: Mapping[str, Layer]) -> list[int]:
    """Return the tokens that layers ask for."""
    prompts: Mapping[str, Sequence[int]] = checkpoint[PROMPTS]
    if LANGUAGE not in asked:
        name, layer = next(iter(asked.items()))
        raise layer.error(name, "needs the language spoken", fix=Fix("pass {} too", Setting(LANGUAGE, min(prompts))))
    tokens = list(prompts[_code(LANGUAGE, asked[LANGUAGE], prompts)])
    if TARGET in asked:
        at = checkpoint[TARGET_AT]
        tokens[at] = prompts[_code(TARGET, asked[TARGET], prompts)][at]
    if PUNCTUATION in asked:
        layer = asked[PUNCTUATION]
        wanted = layer.values[PUNCTUATION]
        if not isinstance(wanted, bool):
            raise layer.error(PUNCTUATION, expected="true or false", fix="pass one of them")
        if not wanted:
            place, token = checkpoint[UNPUNCTUATED]
            tokens[place] = token
    return tokens


def _check_bundle(layer: Layer) -> None:
    """Raise GenerationError for prompts of a bundle that no export writes."""
    prompts, at, without = (layer.values.get(name) for name in (PROMPTS, TARGET_AT, UNPUNCTUATED))
    lengths = _lengths(prompts)
    if not lengths or min(lengths) < 1:
        raise layer.error(PROMPTS, expected="lists of token ids by code", fix="export the model again")
    places = range(min(lengths))
    if at is not None and (type(at) is not int or at not in places):
        raise layer.error(TARGET_AT, expected="a place in each of the prompts", fix="export the model again")
    pair = isinstance(without, list) and len(without) == 2 and all(type(each) is int for each in without)
    if without is not None and (not pair or without[0] not in places):
        raise layer.error(UNPUNCTUATED, expected="a place and a token", fix="export the model again")


def _lengths(prompts: object) -> list[int]:
    """Return the length of each prompt; empty for anything else than lists of tokens."""
    rows = list(prompts.values()) if isinstance(prompts, dict) else []
    return [len(row) for row in rows] if all(isinstance(row, list) for row in rows) else []


def _check_names(layer: Layer, checkpoint: Mapping[str, Any]) -> None:
    """Raise GenerationError for a choice that this model does not have, and for other models' names of one."""
    for name, place in ((TARGET, TARGET_AT), (PUNCTUATION, UNPUNCTUATED)):
        if layer.values.get(name) is not None and place not in checkpoint:
            raise layer.error(name, "is not a choice of this model", fix="leave it out")
    if layer.values.get("source_language") is not None:
        raise layer.error("source_language", "is for texts", fix="pass it as language")
    if layer.values.get("task") is not None:
        fix = f"pass {TARGET} to translate" if TARGET_AT in checkpoint else "leave it out, since this model transcribes"
        raise layer.error("task", "is for Whisper", fix=fix)


def _code(name: str, layer: Layer, prompts: Mapping[str, object]) -> str:
    """Return the code of the language that a setting names, in any case. Raises GenerationError."""
    given = layer.values[name]
    by_name = {each: code for code in prompts for each in (code, *NAMES.get(code, ()))}
    if isinstance(given, str) and (code := by_name.get(given.strip().lower())) is not None:
        return code
    expected, fix = "a language of this model", f"pass one of {', '.join(names_of(prompts))}"
    raise layer.error(name, expected=expected, fix=fix)
