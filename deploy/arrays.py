"""Array types, and the padding of token ids to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Bools", "Floats", "Ints", "Nodes", "mask_of_padding", "right_pad", "unbroken"]

Array: TypeAlias = NDArray[Any]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Nodes: TypeAlias = NDArray[np.int32]
"""Nodes of a trie, or numbers of its edges or tokens."""
Bools: TypeAlias = NDArray[np.bool_]


def right_pad(rows: Sequence[Sequence[int] | Array]) -> tuple[Array, Array]:
    """Pad rows of token ids on the right, with 0.

    Parameters
    ----------
    rows : sequence of B sequences or arrays of int

    Returns
    -------
    input_ids : int64 [B, N]
    attention_mask : int64 [B, N]
        0 at padding.
    """
    ids = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    return ids, mask


def mask_of_padding(input_ids: Array, pad_token_id: int | None, eos_token_ids: Sequence[int]) -> Array:
    """Return the attention mask int64 [B, N] that transformers assumes if no mask is given.

    Pad tokens do not count, unless the pad token is an end-of-sequence token too
    (`GenerationMixin._prepare_attention_mask_for_generation`).
    """
    if pad_token_id is None or pad_token_id in eos_token_ids:
        return np.ones_like(input_ids, dtype=np.int64)
    mask: Array = (input_ids != pad_token_id).astype(np.int64)
    return mask


def unbroken(attention_mask: Array) -> Bools:
    """Return bool [B]: True for a row of the mask int64 [B, N] whose ones are contiguous."""
    starts = np.diff(attention_mask, axis=1, prepend=0) == 1
    contiguous: Bools = starts.sum(axis=1) <= 1
    return contiguous
