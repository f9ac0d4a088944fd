"""Settings that ban tokens: they need no scores.

Source: the processors of transformers 5.24 `generation/logits_process.py` for no_repeat_ngram_size,
encoder_no_repeat_ngram_size, bad_words_ids, min_length, min_new_tokens, suppress_tokens and begin_suppress_tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tightbeam.deploy.arrays import Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.search.processors._forms import Ban
from tightbeam.deploy.search.rows import repeats

__all__ = ["bad_words", "begin_suppressed", "minimum_length", "no_repeat_ngrams", "source_ngrams", "suppressed"]


class RepeatedNgrams(Ban):
    """Tokens that would end an n-gram that the row has already."""

    by_row = by_search_head = True

    def __init__(self, size: int) -> None:
        self._size = size

    def after(self, history: Ints) -> Sequence[Ints]:
        return [repeats(row, self._size)[None, None] for row in history.reshape(-1, history.shape[2])]


class Words(Ban):
    """The last tokens of words whose other tokens have just come. A step looks up each row's last tokens, so its cost
    does not depend on the number of words.

    Parameters
    ----------
    words : collection of sequences of int
        Different token sequences, each of one token or more.
    """

    def __init__(self, words: Collection[Sequence[int]]) -> None:
        self._single = tuple(word[0] for word in words if len(word) == 1)
        self._last: dict[int, dict[bytes, list[int]]] = {}  # by length of the beginning, then by its tokens int64
        for word in words:
            if len(word) > 1:
                beginning = np.array(word[:-1], np.int64).tobytes()
                self._last.setdefault(len(word) - 1, {}).setdefault(beginning, []).append(word[-1])
        self.by_row = bool(self._last)

    def at(self, length: int) -> tuple[int, ...]:
        return self._single

    def after(self, history: Ints) -> Sequence[Ints]:
        B, M, T = history.shape
        rows = history.reshape(B * M, T)
        found = []
        for length, last in self._last.items():
            if length <= T:
                tokens = [last.get(row.tobytes(), ()) for row in rows[:, T - length :]]
                if most := max(map(len, tokens)):
                    banned = np.full((B * M, most), -1, np.int64)
                    for row, own in zip(banned, tokens, strict=True):
                        row[: len(own)] = own
                    found.append(banned.reshape(B, M, most))
        return found


class Tokens(Ban):
    """Some tokens after every row whose length is in a range."""

    def __init__(self, tokens: tuple[int, ...], lengths: range | None = None) -> None:
        self._tokens, self._lengths = tokens, lengths

    def at(self, length: int) -> tuple[int, ...]:
        return self._tokens if self._lengths is None or length in self._lengths else ()


def no_repeat_ngrams(options: GenerationOptions, source: Ints | None) -> Ban | None:
    """The ban of ``no_repeat_ngram_size``."""
    return RepeatedNgrams(options.no_repeat_ngram_size) if options.no_repeat_ngram_size else None


def source_ngrams(options: GenerationOptions, source: Ints | None) -> Ban | None:
    """The ban of ``encoder_no_repeat_ngram_size``: n-grams of the source are banned words."""
    size = options.encoder_no_repeat_ngram_size
    if source is None or not 0 < size <= len(source):
        return None
    tokens = source.tolist()
    return Words(set(zip(*(tokens[first:] for first in range(size)), strict=False)))


def bad_words(options: GenerationOptions, source: Ints | None) -> Ban | None:
    """The ban of ``bad_words_ids``."""
    return Words(options.bad_words_ids) if options.bad_words_ids else None


def minimum_length(options: GenerationOptions, source: Ints | None) -> Ban | None:
    """The ban of ``min_length``, which ``min_new_tokens`` is made one of: no end token in a shorter row."""
    return Tokens(options.eos_token_ids, range(options.min_length)) if options.min_length else None


def suppressed(options: GenerationOptions, source: Ints | None) -> Ban | None:
    """The ban of ``suppress_tokens``."""
    return Tokens(options.suppress_tokens) if options.suppress_tokens else None


def begin_suppressed(options: GenerationOptions, source: Ints | None) -> Ban | None:
    """The ban of ``begin_suppress_tokens``, for the first token that is not forced."""
    begin = options.begin
    return Tokens(options.begin_suppress_tokens, range(begin, begin + 1)) if options.begin_suppress_tokens else None
