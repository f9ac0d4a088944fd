"""The languages of a translator, as its tokenizer names them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tightbeam.deploy.generation.spoken_language import PROMPTS
from tightbeam.deploy.generation.translation import BEGINS, LANGUAGES
from tightbeam.export.families.base import Family

__all__ = ["language_settings"]


def language_settings(family: Family, tokenizer: Any | None, vocabulary: int) -> dict[str, dict[str, Any] | bool]:
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
        The setting ``language_prompts`` of a speech model, or else ``lang_to_id``, and ``language_begins`` if the
        target's token begins the output; empty if the model has no languages.
    """
    if family.languages is None or tokenizer is None:
        return {}
    found = {}
    for token, number in tokenizer.get_vocab().items():
        match = re.fullmatch(family.languages, token)
        if match and number < vocabulary:
            found[match[match.lastindex or 0]] = int(number)
    if family.language_prompt:
        return _prompts(family.language_prompt, found, tokenizer.get_vocab(), vocabulary)
    begins = {BEGINS: True} if family.language_begins else {}
    return {LANGUAGES: dict(sorted(found.items())), **begins} if found else {}


def _prompts(
    prompt: Sequence[str], languages: Iterable[str], ids: Mapping[str, int], vocabulary: int
) -> dict[str, dict[str, Any] | bool]:
    """The setting ``language_prompts``, of the languages all of whose tokens the tokenizer has."""
    tokens = {code: [ids.get(token.format(code), vocabulary) for token in prompt] for code in sorted(languages)}
    found = {code: list(map(int, row)) for code, row in tokens.items() if max(row) < vocabulary}
    return {PROMPTS: found} if found else {}
