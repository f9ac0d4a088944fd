"""Alignment of the words of a translation with the words of its source, by the attention of the tokens.

Tokens are placed in a text by the number of its characters that are not spaces, which tokenizers change most often.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from tightbeam.deploy.arrays import Bools, Floats, Ints
from tightbeam.deploy.text.scripts import is_unspaced

__all__ = ["WORD", "TokenAlignment", "WordAlignment", "token_alignment"]

Span = tuple[int, int]
WORD = re.compile(r"\w(?:[\w'\u2019.-]*\w)?")
NOT_SPACE = re.compile(r"\S")


@dataclass(frozen=True, eq=False)
class TokenAlignment:
    """The attention of the tokens of a translation.

    Attributes
    ----------
    source_ends, ends : list of int
        For each of N source tokens and T new tokens, the characters other than spaces up to its end.
    weights : floats [T, N]
        How much the step that chose a new token attended to each source token.
    """

    source_ends: list[int]
    ends: list[int]
    weights: Floats

    @classmethod
    def of_same(cls, text: str) -> TokenAlignment:
        """Return the alignment of a text with itself, whose words are its tokens."""
        ends = np.cumsum([len(word) for word in text.split()], dtype=np.int64).tolist()
        return cls(ends, ends, np.eye(len(ends), dtype=np.float32))


def token_alignment(
    decode: Callable[[Sequence[int]], str], text: str, source: Sequence[int], tokens: Sequence[int], weights: Floats
) -> TokenAlignment | None:
    """Place the tokens of a source and of its translation in their texts.

    Parameters
    ----------
    decode
        Returns the text of tokens.
    text
        The source.
    source, tokens
        N token ids of the source, and T of the translation.
    weights : floats [T, N]

    Returns
    -------
    TokenAlignment or None
        None if the weights are of other tokens.
    """
    if weights.shape != (len(tokens), len(source)):
        return None
    source_ends = _fitted(_ends(decode, source), _unspaced(decode(source)), _unspaced(text))
    return TokenAlignment(source_ends, _ends(decode, tokens), weights)


def _ends(decode: Callable[[Sequence[int]], str], tokens: Sequence[int]) -> list[int]:
    return [len(_unspaced(decode(tokens[: count + 1]))) for count in range(len(tokens))]


def _unspaced(text: str) -> str:
    return "".join(text.split())


def _fitted(ends: list[int], decoded: str, text: str) -> list[int]:
    """Return the ends of tokens in a text of which the tokenizer writes characters otherwise or has none of them.

    Between the beginning and the end that ``decoded`` and ``text`` share, tokens are at the same share of the length.
    """
    same = _same_signs(decoded, text)
    last = len(decoded) - _same_signs(decoded[same:][::-1], text[same:][::-1])
    places = [same, last], [same, last + len(text) - len(decoded)]
    behind = [end + len(text) - len(decoded) if end >= last else round(np.interp(end, *places)) for end in ends]
    return [end if end <= same else new for end, new in zip(ends, behind, strict=True)]


def _same_signs(one: str, other: str) -> int:
    """Return how many characters both texts begin with."""
    differ = (place for place, (sign, its) in enumerate(zip(one, other, strict=False)) if sign != its)
    return next(differ, min(len(one), len(other)))


class WordAlignment:
    """The words of a sentence and of its translation.

    Parameters
    ----------
    source, target : str
        The sentence, and its translation.
    parts : sequence of TokenAlignment
        The alignments of the parts that both consist of, in their order.
    """

    def __init__(self, source: str, target: str, parts: Sequence[TokenAlignment]) -> None:
        self._source, self._target = _words(source), _words(target)
        places = _places_without_spaces(source, self._source), _places_without_spaces(target, self._target)
        self._weights = np.zeros((len(self._target), len(self._source)), np.float32)
        before = new_before = 0
        for part in parts:
            columns, rows = _shared(places[0], part.source_ends, before), _shared(places[1], part.ends, new_before)
            self._weights += rows.T @ part.weights @ columns
            before += part.source_ends[-1] if part.source_ends else 0
            new_before += part.ends[-1] if part.ends else 0
        self._spans = np.array(self._source, np.int64).reshape(-1, 2)
        if self._weights.size:
            self._claimed = self._weights.argmax(axis=0)  # by source word
            self._attended = self._weights.argmax(axis=1)  # by target word
        self._of_word = cache(lambda word: self.place(*self._source[word]))  # many tags may stand at one word

    def place(self, begin: int, end: int) -> Span | None:
        """Return the characters of the translation that belong to some of the source; None if they have no word.

        A source word claims the target word that attends to it most. A target word belongs to the characters if a word
        of them claims it, and no other does or its own attention decides for them; one that nobody claims follows its
        own attention. The place is the stretch that has most of these words and fewest others.
        """
        if not self._weights.size:
            return None
        inside: Bools = (self._spans[:, 0] < end) & (begin < self._spans[:, 1])
        if not inside.any():
            return None
        by_inside, by_others = (
            np.bincount(self._claimed[own], minlength=len(self._target)) > 0 for own in (inside, ~inside)
        )
        attends = inside[self._attended]
        belongs = np.where(by_inside, ~by_others | attends, ~by_others & attends)
        share = belongs.astype(np.float32)
        if not belongs.any():
            share = self._weights[:, inside].sum(axis=1) / np.maximum(self._weights.sum(axis=1), np.float32(1e-9))
        first, last = _best_stretch((share - 0.5).tolist())
        return self._target[first][0], self._target[last][1]

    def before(self, place: int) -> int | None:
        """Return the place in the translation of markup in front of a source word; None if no word follows it."""
        following = bisect_left(self._source, (place, place))
        if following == len(self._source):
            return None
        found = self._of_word(following)
        return None if found is None else found[0]

    def behind(self, place: int) -> int | None:
        """Return the place in the translation of markup behind a source word; None if no word precedes it."""
        preceding = bisect_right(self._source, place, key=lambda word: word[1]) - 1
        found = None if preceding < 0 else self._of_word(preceding)
        return None if found is None else found[1]


def _words(text: str) -> list[Span]:
    """Return the words of a text; a sign of a script without spaces between words is a word of its own."""
    found: list[Span] = []
    for match in WORD.finditer(text):
        begin = match.start()
        for place in range(*match.span()):
            if is_unspaced(text[place]):
                found += [(begin, place)] * (begin < place) + [(place, place + 1)]
                begin = place + 1
        found += [(begin, match.end())] * (begin < match.end())
    return found


def _places_without_spaces(text: str, words: Sequence[Span]) -> Ints:
    """Return the places [X, 2] of words among the characters that are not spaces."""
    signs = [match.start() for match in NOT_SPACE.finditer(text)]
    return np.array([[bisect_left(signs, place) for place in word] for word in words], np.int64).reshape(-1, 2)


def _shared(words: Ints, ends: Sequence[int], before: int) -> Floats:
    """Return for each token and word [n, X] 1 if they share characters, else 0.

    ``words`` are as of `_places_without_spaces`, and ``ends`` as of `TokenAlignment`, behind ``before`` characters.
    """
    last = before + np.array(ends, np.int64)[:, None]
    first = np.concatenate([np.full((1, 1), before), last])[:-1]
    shared: Floats = ((first < words[:, 1]) & (words[:, 0] < last)).astype(np.float32)
    return shared


def _best_stretch(values: Sequence[float]) -> Span:
    """Return the first and the last index of the stretch with the largest sum; of equal ones the longest."""
    best = (-np.inf, 0, 0, 0)
    total, first = 0.0, 0
    for index, value in enumerate(values):
        if total < 0:
            total, first = 0.0, index
        total += value
        if (total, index - first) > best[:2]:
            best = total, index - first, first, index
    return best[2], best[3]
