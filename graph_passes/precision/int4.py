"""Matrices as integers of 4 bits with a scale for each 32 numbers of a column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightbeam.graph_passes.model import Array
from tightbeam.plugins.ops.int4_matmul import BLOCK, MOST_SCALE
from tightbeam.plugins.ops.int4_matmul.layout import tiled, tiled_scales

__all__ = ["BYTES", "LEAST", "MOST", "Int4Matrix", "column_scales", "nearest", "rounded_block"]

LEAST, MOST = -8, 7
"""The smallest and the largest integer."""
BYTES = 0.5 + 1 / BLOCK
"""Bytes of a weight with its part of the block's scale; each column has four more."""
SMALLEST = 1e-30
"""A column without a larger number counts as zeros."""
HEADROOM = 0.5
"""The largest scale of a column's blocks as a part of ``MOST_SCALE``: corrections may make numbers larger."""
FACTORS = (1.0, 0.95, 0.9, 0.875, 0.85, 0.8, 0.75, 0.65)
"""Scales that are tried for a block, in units of the one that rounds its largest number to 7. A smaller one clips this
number, and rounds the others more finely."""


@dataclass(frozen=True)
class Int4Matrix:
    """A matrix [X, Y] of integers of 4 bits.

    Attributes
    ----------
    integers : int8 [X, Y]
        From ``LEAST`` to ``MOST``.
    block_scale : uint8 [X / 32, Y]
        The scale of each block of 32 numbers, in units of the column's.
    scale : float32 [Y]
        The scale of each column.
    """

    integers: Array
    block_scale: Array
    scale: Array

    @property
    def values(self) -> Array:
        """The numbers that the integers stand for, float32 [X, Y]."""
        scales = np.repeat(self.block_scale.astype(np.float32) * self.scale, BLOCK, axis=0)
        return np.asarray(self.integers * scales)

    def tiles(self) -> tuple[Array, Array, Array]:
        """Weights, scales of blocks and scales of columns, as Int4MatMul reads them."""
        return tiled(self.integers), tiled_scales(self.block_scale), self.scale


def column_scales(matrix: Array) -> Array:
    """The unit float32 [Y] of the scales of each column's blocks, for a matrix [X, Y]."""
    largest = np.abs(matrix).max(axis=0)
    scale = np.where(largest > SMALLEST, largest, 1) / (MOST * MOST_SCALE * HEADROOM)
    return np.asarray(scale.astype(np.float32))


def rounded_block(block: Array, scale: Array, weights: Array | None = None) -> tuple[Array, Array]:
    """Choose the scales of one block of numbers, and round it.

    Parameters
    ----------
    block
        Numbers [32, Y].
    scale
        The unit of each column, [Y].
    weights
        What the squared error of each number counts, [32]; by default all count the same.

    Returns
    -------
    tuple
        Integers int8 [32, Y], and scales uint8 [Y]: for each column those with the smallest error, of a few.
    """
    largest = np.abs(block).max(axis=0)
    counts = np.ones(len(block), block.dtype) if weights is None else weights.astype(block.dtype)
    least = np.full(block.shape[1], np.inf, block.dtype)
    found = np.ones(block.shape[1], np.uint8)
    for factor in FACTORS:
        units = np.rint(largest * (factor / MOST) / scale).clip(1, MOST_SCALE)
        own = units * scale
        error = counts @ np.square(np.rint(block / own).clip(LEAST, MOST) * own - block)
        better = error < least
        least[better], found[better] = error[better], units[better]
    return np.rint(block / (found * scale)).clip(LEAST, MOST).astype(np.int8), found


def nearest(matrix: Array) -> Int4Matrix:
    """Round each number of a matrix [X, Y] to the nearest; X is a multiple of 32."""
    scale = column_scales(matrix)
    blocks = [rounded_block(matrix[first : first + BLOCK], scale) for first in range(0, len(matrix), BLOCK)]
    integers, scales = (np.concatenate([np.atleast_2d(part) for part in parts]) for parts in zip(*blocks, strict=True))
    return Int4Matrix(integers, scales, scale)
