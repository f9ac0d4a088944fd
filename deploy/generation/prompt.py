"""Prompts of a decoder-only model as rows of tokens, and as the source that is cached once a sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightbeam.deploy.arrays import Array, Ints

__all__ = ["Prompt", "banned_by_padding", "first_length"]


@dataclass(frozen=True)
class Prompt:
    """The prompts of a batch. The decoder is fed a prompt's last token first; the tokens before it are the source.

    Attributes
    ----------
    tokens : int64 [B, P]
        The beginning of each sample's sequences, padded on the left.
    padding : int64 [B]
        Number of padding tokens in ``tokens``.
    source_ids : int64 [B, N]
        All but the last token of each prompt, padded on the right; N is at least 1.
    source_mask : int64 [B, N]
        0 at padding; all 0 for a prompt of one token.
    first_positions : int32 [B]
        The position of each prompt's last token. Padding has no position.
    """

    tokens: Ints
    padding: Ints
    source_ids: Ints
    source_mask: Ints
    first_positions: Array

    @classmethod
    def of(cls, input_ids: Array, attention_mask: Array) -> Prompt:
        """Make prompts from ids and mask, int64 [B, N]. The ones of each mask row are contiguous, at least one."""
        last = np.argsort(attention_mask, axis=1, kind="stable")  # padding first
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


def first_length(prompt: Prompt | None) -> int:
    """Return the tokens of a row when the decoder is fed for the first time: P of a prompt, else the start token."""
    return 1 if prompt is None else prompt.tokens.shape[1]


def banned_by_padding(history: Array, padding: Array, size: int) -> Ints:
    """Return the tokens that would repeat an n-gram that begins in the padding of a row.

    `NoRepeatNGramLogitsProcessor` of transformers treats padding as text. The graph gets rows without padding.

    Parameters
    ----------
    history : int64 [B, M, T]
    padding : int64 [B]
        Number of padding tokens at the beginning of each row.
    size : int
        n; 0 is off.

    Returns
    -------
    int64 [B, M, X]
        -1 marks an unused entry.
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
