"""The layout of Int4MatMul's weights: from a matrix to tiles, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightbeam.plugins.ops.int4_matmul import ZERO_POINT
from tightbeam.plugins.ops.quantized_matmul import GROUP, TILE_COLUMNS

__all__ = ["tiled", "tiled_scales", "untiled", "untiled_scales"]

Array = NDArray[Any]


def tiled(weights: Array) -> Array:
    """Put a matrix of integers of 4 bits into tiles of 16 columns.

    Parameters
    ----------
    weights
        The matrix [X, Y] of integers -8..7; X is a multiple of 8.

    Returns
    -------
    array
        Tiles uint8 [ceil(Y / 16), X / 8, 16, 4] of the integers plus 8, two in a byte. Zero weights fill the last tile.
    """
    X, Y = weights.shape
    padded = np.full((X, -(-Y // TILE_COLUMNS) * TILE_COLUMNS), ZERO_POINT, np.uint8)
    padded[:, :Y] = weights + ZERO_POINT
    by_group = padded.reshape(X // (2 * GROUP), 2, GROUP, -1, TILE_COLUMNS)
    return np.ascontiguousarray((by_group[:, 0] | by_group[:, 1] << 4).transpose(2, 0, 3, 1))


def untiled(tiles: Array, Y: int) -> Array:
    """Take a matrix of integers out of its tiles; the inverse of :func:`tiled`.

    Parameters
    ----------
    tiles
        Tiles uint8 [ceil(Y / 16), X / 8, 16, 4].
    Y
        Number of columns.

    Returns
    -------
    array
        The matrix int64 [X, Y].
    """
    by_group = np.stack([tiles & 15, tiles >> 4]).transpose(2, 0, 4, 1, 3)
    weights = by_group.reshape(tiles.shape[1] * 2 * GROUP, -1)[:, :Y]
    return np.asarray(weights.astype(np.int64) - ZERO_POINT)


def tiled_scales(scales: Array) -> Array:
    """Put scales of blocks uint8 [blocks, Y] into tiles [ceil(Y / 16), blocks, 16]; ones fill the last tile."""
    blocks, Y = scales.shape
    padded = np.ones((blocks, -(-Y // TILE_COLUMNS) * TILE_COLUMNS), np.uint8)
    padded[:, :Y] = scales
    return np.ascontiguousarray(padded.reshape(blocks, -1, TILE_COLUMNS).transpose(1, 0, 2))


def untiled_scales(tiles: Array, Y: int) -> Array:
    """Take scales of blocks uint8 [blocks, Y] out of their tiles; the inverse of :func:`tiled_scales`."""
    return np.asarray(tiles.transpose(1, 0, 2).reshape(tiles.shape[1], -1)[:, :Y])
