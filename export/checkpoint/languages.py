"""The languages of a translator or a speech model, as its tokenizer names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tightbeam.deploy.generation.spoken_language import PROMPTS, TARGET_AT, UNPUNCTUATED
from tightbeam.deploy.generation.translation import BEGINS, LANGUAGES
from tightbeam.export.families.base import Family

__all__ = ["language_settings"]

Prompt = Callable[[str, str, bool], list[int]]
"""Returns the beginning of the output for a language spoken, a language of the text, and with punctuation or not."""
PUNCTUATED, WITHOUT = "<|pnc|>", "<|nopnc|>"


def language_settings(family: Family, tokenizer: Any | None, vocabulary: int) -> dict[str, Any]:
    """Settings of a bundle that hold the ids of the languages' tokens by name.

    Parameters
    ----------
    family
        Says how tokens name languages.
    tokenizer
        transformers' tokenizer of the checkpoint, if it has one.
    vocabulary
        Tokens that the model scores.

    Returns
    -------
    dict
        The settings of `tightbeam.deploy.generation.spoken_language` for a speech model, or else ``lang_to_id``, and
        ``language_begins`` if the target's token begins the output; empty if the model has no languages.
    """
    if family.languages is None or tokenizer is None:
        return {}
    found = {}
    for token, number in tokenizer.get_vocab().items():
        match = re.fullmatch(family.languages, token)
        if match and number < vocabulary:
            found[match[match.lastindex or 0]] = int(number)
    if family.language_prompt:
        return _prompts(family, sorted(found), tokenizer, vocabulary)
    begins = {BEGINS: True} if family.language_begins else {}
    return {LANGUAGES: dict(sorted(found.items())), **begins} if found else {}


def _prompts(family: Family, languages: Sequence[str], tokenizer: Any, vocabulary: int) -> dict[str, Any]:
    """The settings of the languages all of whose tokens the tokenizer has, and of what may be chosen beside them."""
    make = _prompt_of_template(tokenizer)
    if make is None:
        make = partial(_prompt, family.language_prompt, family.target_at, tokenizer.get_vocab(), vocabulary)
    found = {code: row for code in languages if max(row := make(code, code, True), default=vocabulary) < vocabulary}
    if not found:
        return {}
    settings: dict[str, Any] = {PROMPTS: found}
    first, last = min(found), max(found)
    if family.target_at is not None and (at := _changed(found[first], make(first, last, True))) is not None:
        settings[TARGET_AT] = at
    without = make(first, first, False)
    if (at := _changed(found[first], without)) is not None and without[at] < vocabulary:
        settings[UNPUNCTUATED] = [at, without[at]]
    return settings


def _prompt(
    names: Sequence[str],
    target_at: int | None,
    ids: Mapping[str, int],
    vocabulary: int,
    spoken: str,
    target: str,
    punctuation: bool,
) -> list[int]:
    """The tokens that transformers' processor gives; ``vocabulary`` for each that the tokenizer lacks."""
    texts = [name.format(target if place == target_at else spoken) for place, name in enumerate(names)]
    return [int(ids.get(WITHOUT if text == PUNCTUATED and not punctuation else text, vocabulary)) for text in texts]


def _prompt_of_template(tokenizer: Any) -> Prompt | None:
    """Return how the checkpoint's chat template makes the prompt (Canary's); None if it has none that does."""
    if not tokenizer.chat_template:
        return None

    def make(spoken: str, target: str, punctuation: bool) -> list[int]:
        asked = {"source_language": spoken, "target_language": target, "punctuation": punctuation}
        message = {"role": "user", "content": [{"type": "audio"}, {"type": "text", **asked}]}
        text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]

    try:
        make("en", "en", True)
    except Exception:  # templates refuse messages, and raise anything
        return None
    return make


def _changed(row: Sequence[int], other: Sequence[int]) -> int | None:
    """Return the one place in which two prompts differ; None if there is none, or there are several."""
    if len(row) != len(other):
        return None
    places = [place for place, pair in enumerate(zip(row, other, strict=True)) if pair[0] != pair[1]]
    return places[0] if len(places) == 1 else None
