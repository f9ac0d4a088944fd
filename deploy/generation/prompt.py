"""Prompts of a decoder-only model, in the two forms that a generation needs: rows of tokens, and a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.runtimes.base import Array

__all__ = ["Prompt", "banned_by_padding", "left_pad", "mask_of_padding", "unbroken"]


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

    tokens: npt.NDArray[np.int64]
    padding: npt.NDArray[np.int64]
    source_ids: npt.NDArray[np.int64]
    source_mask: npt.NDArray[np.int64]
    first_positions: npt.NDArray[np.int32]

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


def unbroken(attention_mask: Array) -> npt.NDArray[np.bool_]:
    """Whether what counts in each row of a mask [B, N] stands together, bool [B]."""
    starts = np.diff(attention_mask, axis=1, prepend=0) == 1
    together: npt.NDArray[np.bool_] = starts.sum(axis=1) <= 1
    return together


def banned_by_padding(history: Array, padding: Array, size: int) -> npt.NDArray[np.int64]:
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
    banned: npt.NDArray[np.int64] = np.where(again, grams[..., -1], -1)[:, :, found]
    return banned


def left_pad(rows: Sequence[Sequence[int]], pad_token_id: int | None) -> tuple[Array, Array]:
    """Token ids int64 [B, N], padded on the left (with 0 where there is no pad token), and their mask int64 [B, N]."""
    ids = np.full((len(rows), max(map(len, rows))), pad_token_id or 0, dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(rows):
        start = ids.shape[1] - len(tokens)
        ids[row, start:] = tokens
        mask[row, start:] = 1
    return ids, mask


def mask_of_padding(input_ids: Array, options: GenerationOptions) -> Array:
    """The mask int64 [B, N] that transformers assumes where it is given none: pad tokens do not count, unless one of
    them may end a sequence (`GenerationMixin._prepare_attention_mask_for_generation`)."""
    if options.pad_token_id is None or options.pad_token_id in options.eos_token_ids:
        return np.ones_like(input_ids, dtype=np.int64)
    mask: Array = (input_ids != options.pad_token_id).astype(np.int64)
    return mask
