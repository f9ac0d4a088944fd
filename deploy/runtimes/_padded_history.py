"""Rows of a batch whose prompts have padding: the search's rows have the padding, and the decoder's rows do not.

In transformers, rules that count a row's tokens, or look at its n-grams and words, take padding for text, and
``repetition_penalty`` does not. So the search has rows with padding. The decoder, whose search head applies the penalty
and blocks n-grams, has rows without padding; n-grams that begin in the padding become banned tokens.
"""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.arrays import Ints
from tightbeam.deploy.search.compaction import Compaction

__all__ = ["PaddedHistory", "banned_by_padding"]


class PaddedHistory:
    """The search's rows, with padding.

    Parameters
    ----------
    history : int64 [B, M, T]
        The rows so far. They are copied.
    """

    def __init__(self, history: Ints) -> None:
        self._rows = history.copy()

    def rows(self, B: int, T: int) -> Ints:
        """Return a view [B, M, T] of the rows of the first B samples. It is valid until the next call."""
        _, M, _ = shape = self._rows.shape
        if shape[0] < B or shape[2] < T:
            larger = np.zeros((max(B, 2 * shape[0]), M, max(T, shape[2])), np.int64)
            larger[: shape[0], :, : shape[2]] = self._rows
            self._rows = larger
        return self._rows[:B, :, :T]

    def compact(self, compaction: Compaction, B: int) -> None:
        """Compact the rows of B samples."""
        compaction.apply(self._rows[:B])


def banned_by_padding(history: Ints, padding: int, size: int) -> Ints:
    """Return the tokens that would repeat an n-gram that begins in the padding of a sample's rows.

    Source: `NoRepeatNGramLogitsProcessor` of transformers 5.24, which takes padding for text.

    Parameters
    ----------
    history : int64 [M, T]
    padding : int
        Number of padding tokens at the beginning of each row.
    size : int
        n; 0 is off.

    Returns
    -------
    int64 [M, X]
        -1 marks an unused entry.
    """
    M, T = history.shape
    starts = np.arange(min(padding, T + 1 - size))
    if not size or not len(starts):
        return np.zeros((M, 0), np.int64)
    newest = history[:, T + 1 - size :]  # [M, size - 1]
    grams = history[:, starts[:, None] + np.arange(size)]  # [M, X, size]
    again = (grams[..., :-1] == newest[:, None]).all(axis=2)
    banned: Ints = np.where(again, grams[..., -1], -1)[:, again.any(axis=0)]
    return banned
