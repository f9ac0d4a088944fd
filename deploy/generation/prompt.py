"""Prompts of a decoder-only model, in the two forms that a generation needs: rows of tokens, and a source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightbeam.deploy.arrays import Array, Ints

__all__ = ["Prompt", "banned_by_padding"]


@dataclass(frozen=True)
class Prompt:
    """The prompts of a batch.

    The decoder is fed a prompt's last token first; all before it is the source, kept once a sample.

    Attributes:
        tokens: int64 [B, P], padded on the left: what the sequences of each sample begin with.
        padding: int64 [B], how many of them are padding.
        source_ids: int64 [B, N], all but the last token of each, padded on the right; N is 1 at least.
        source_mask: int64 [B, N]; all 0 for a prompt of one token.
        first_positions: int32 [B], the position of each prompt's last token; padding has no position.
    """

    tokens: Ints
    padding: Ints
    source_ids: Ints
    source_mask: Ints
    first_positions: Array

    @classmethod
    def of(cls, input_ids: Array, attention_mask: Array) -> Prompt:
        """From ids and mask, both int64 [B, N]; what counts in a row, one token at least, stands together."""
        last = np.argsort(attention_mask, axis=1, kind="stable")  # what counts comes last
        first = np.argsort(-attention_mask, axis=1, kind="stable")
        counts = attention_mask.sum(axis=1)  # [B]
        N = max(1, int(counts.max()) - 1)
        mask = (np.arange(N) < counts[:, None] - 1).astype(np.int64)
        return cls(
            tokens=np.take_along_axis(input_ids, last, axis=1),
            padding=input_ids.shape[1] - counts,
            source_ids=np.take_along_axis(input_ids, first, axis=1)[:, :N] * mask,
            source_mask=mask,
            first_positions=(counts - 1).astype(np.int32),
        )


def banned_by_padding(history: Array, padding: Array, size: int) -> Ints:
    """Tokens int64 [B, M, X] that may not follow ``history`` [B, M, T], since an n-gram of ``size`` that begins in a
    row's ``padding`` [B] would come again; -1 marks an unused entry.

    `NoRepeatNGramLogitsProcessor` of transformers takes padding for text. The graph sees none of it.
    """
    B, M, T = history.shape
    starts = np.arange(min(int(padding.max()), T + 1 - size))
    if not size or not len(starts):
        return np.zeros((B, M, 0), np.int64)
    newest = history[:, :, T + 1 - size :]  # [B, M, size - 1]
    grams = history[:, :, starts[:, None] + np.arange(size)]  # [B, M, X, size]
    again = (grams[..., :-1] == newest[:, :, None]).all(axis=3) & (starts < padding[:, None, None])
    found = again.any(axis=(0, 1))
    banned: Ints = np.where(again, grams[..., -1], -1)[:, :, found]
    return banned
