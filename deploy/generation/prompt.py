"""Prompts of a decoder-only model as rows of tokens, and as the source that is cached once a sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightbeam.deploy.arrays import Array, Ints

__all__ = ["Prompt", "first_length"]


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
