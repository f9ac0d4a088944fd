"""Sentences of a text, which sentencex finds, and pieces of a sentence that is too long for the model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tightbeam.deploy.errors import InputError, is_panic

__all__ = ["INSTALL", "most_that_fit", "pieces_that_fit", "split_sentences"]

INSTALL = "pip install 'tightbeam[documents]'"
WINDOW = 2000
"""Characters that sentencex reads at a time: its time grows with their square if a quotation is never closed. A longer
sentence is cut."""
CUTS = (r"(?<=[,;:،؛、\uff0c\uff1b\uff1a—\u2013])\s+|(?<=[、\uff0c\uff1b\uff1a])", r"\s+", "")
"""Places at which a sentence is cut, the best first: behind clauses, between words, anywhere."""


def split_sentences(text: str, language: str) -> list[str]:
    """Split a text into its sentences.

    Parameters
    ----------
    text
        The text.
    language
        Its language, such as "en". The rules of a language that sentencex does not know are those of a similar one, or
        of English.

    Returns
    -------
    list of str
        The sentences, each with the space behind it; joined they are the text.

    Raises
    ------
    InputError
        sentencex is not installed.
    """
    spaced = re.sub(r"\s", " ", text)  # it is one character for one; sentencex fails at some spaces of other kinds
    found: list[str] = []
    begin = 0
    while begin < len(spaced):
        window = spaced[begin : begin + WINDOW]
        whole = begin + len(window) == len(spaced)
        lengths = list(map(len, _segment(language, window)))
        if not whole and len(lengths) > 1:
            del lengths[-1]  # it may go on behind the window
        elif not whole and (space := window.rfind(" ", 1)) > 0:
            lengths = [space + 1]
        for length in lengths:
            found.append(text[begin : begin + length])
            begin += length
    return found


def _segment(language: str, text: str) -> list[str]:
    try:
        import sentencex
    except ImportError:
        raise InputError(f"splitting documents into sentences needs sentencex, which is missing; {INSTALL}") from None
    try:
        found: list[Any] = sentencex.segment(language, text)
    except BaseException as error:
        if not is_panic(error):
            raise
        return [text]
    return found if "".join(found) == text else [text]


def pieces_that_fit(text: str, fits: Callable[[str], bool]) -> Iterator[str]:
    """Cut a text into pieces that the model has positions for: behind clauses, or between words, or anywhere.

    Parameters
    ----------
    text
        The text.
    fits
        Says whether a piece fits.

    Yields
    ------
    str
        The pieces, as long as they may be; joined they are the text.
    """
    yield from _pieces(text, fits, CUTS)


def _pieces(text: str, fits: Callable[[str], bool], cuts: Sequence[str]) -> Iterator[str]:
    if fits(text) or len(text) < 2:
        yield text
        return
    parts = _parts(text, cuts[0])
    begin = 0
    while begin < len(parts):
        count = most_that_fit(parts, begin, fits)
        if count or len(parts[begin]) < 2:
            yield "".join(parts[begin : begin + max(1, count)])
            begin += max(1, count)
            continue
        yield from _pieces(parts[begin], fits, cuts[1:] or cuts)
        begin += 1


def _parts(text: str, cut: str) -> list[str]:
    if not cut:
        return list(text)
    ends = [match.end() for match in re.finditer(cut, text)]
    return [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True) if begin < end]


def most_that_fit(parts: Sequence[str], begin: int, fits: Callable[[str], bool]) -> int:
    """Return how many parts from ``begin`` on fit together, or 0."""

    def together(count: int) -> bool:
        return fits("".join(parts[begin : begin + count]))

    limit = len(parts) - begin
    low, high = 0, 1
    while high <= limit and together(high):
        low, high = high, high * 2
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if together(middle) else (low, middle)
    return low
