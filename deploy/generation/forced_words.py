"""The setting ``force_words_ids``: words that must occur in the output.

Source: transformers 4.56.2, the last release that has it; what it refuses is refused here.
"""

from __future__ import annotations

from typing import Any

from tightbeam.deploy.generation.fields import Fields

__all__ = ["read_forced_words"]

NAME = "force_words_ids"
FIX = "pass a list such as [[17, 4], [[8], [9, 3]]], for one word and one with two alternatives"


def read_forced_words(fields: Fields, num_beams: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Read the words, each with its alternatives.

    Parameters
    ----------
    fields : Fields
        Merged settings.
    num_beams : int

    Returns
    -------
    tuple
        Empty where nothing is forced.

    Raises
    ------
    GenerationError
        The value is none, or another setting excludes it.
    """
    given = fields.get(NAME, None)
    if given is None:
        return ()
    if not _is_list(given):
        raise fields.error(NAME, "is no list of words", FIX)
    words = tuple(_alternatives(fields, word) for word in given)
    if num_beams < 2:
        raise fields.error(NAME, "needs beams", "pass num_beams=2 or more")
    for name, neutral in (
        ("do_sample", False),
        ("num_beam_groups", 1),
        ("return_token_scores", False),
        ("return_alternatives", 0),
    ):
        if fields.get(name, neutral) != neutral:
            raise fields.error(NAME, f"does not go with {name}", "leave one out")
    return words


def _alternatives(fields: Fields, word: Any) -> tuple[tuple[int, ...], ...]:
    if not _is_list(word):
        raise fields.error(NAME, "is no list of words", FIX)
    several = _is_list(word[0])
    found = []
    for tokens in word if several else [word]:
        if not _is_list(tokens):
            raise fields.error(NAME, "is no list of words", FIX)
        found.append(tuple(fields.check_token(NAME, token) for token in tokens))
    if _begins_another(found):
        raise fields.error(NAME, "has an alternative that begins another of its word", "leave the longer one out")
    return tuple(found)


def _begins_another(alternatives: list[tuple[int, ...]]) -> bool:
    return any(
        first == second[: len(first)]
        for place, first in enumerate(alternatives)
        for other, second in enumerate(alternatives)
        if place != other
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0
