"""The layout of QuantizedMatMul's weights: from a matrix to tiles, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightbeam.plugins.ops.quantized_matmul import GROUP, TILE_COLUMNS, ZERO_POINT

__all__ = ["COLUMNS_AT_ONCE", "tiled", "untiled"]

Array = NDArray[Any]

COLUMNS_AT_ONCE = 256
"""Columns that are quantised or put into tiles together, so that they stay in the processor's cache."""


def tiled(weights: Array) -> Array:
    """Put a matrix of integers into tiles of 16 columns.

    Parameters
    ----------
    weights
        The matrix [X, Y] of integers -127..127; X is a multiple of 4.

    Returns
    -------
    array
        Tiles uint8 [ceil(Y / 16), X / 4, 16, 4] of the integers plus 128. Zero weights fill the last one.
    """
    X, Y = weights.shape
    tiles = np.full((-(-Y // TILE_COLUMNS), X // GROUP, TILE_COLUMNS, GROUP), ZERO_POINT, np.uint8)
    groups = tiles.view(np.uint32)[..., 0]  # the four integers of a column and a group move as one
    for first in range(0, Y, COLUMNS_AT_ONCE):
        columns = np.ascontiguousarray(weights[:, first : first + COLUMNS_AT_ONCE].T, np.int8).view(np.uint8)
        of_columns = (columns ^ np.uint8(ZERO_POINT)).view(np.uint32)
        whole = len(of_columns) // TILE_COLUMNS
        tile = first // TILE_COLUMNS
        complete = of_columns[: whole * TILE_COLUMNS].reshape(whole, TILE_COLUMNS, X // GROUP)
        groups[tile : tile + whole] = complete.transpose(0, 2, 1)
        if len(rest := of_columns[whole * TILE_COLUMNS :]):
            groups[-1, :, : len(rest)] = rest.T
    return tiles


def untiled(tiles: Array, Y: int, dtype: type = np.int64) -> Array:
    """Take a matrix of integers out of its tiles; the inverse of :func:`tiled`.

    Parameters
    ----------
    tiles
        Tiles uint8 [ceil(Y / 16), X / 4, 16, 4].
    Y
        Number of columns.
    dtype
        Type of the integers, of 8 bits or more.

    Returns
    -------
    array
        The matrix [X, Y].
    """
    weights = (tiles ^ np.uint8(ZERO_POINT)).view(np.int8).transpose(1, 3, 0, 2)
    return np.ascontiguousarray(weights.reshape(tiles.shape[1] * GROUP, -1)[:, :Y], dtype)
