"""The layout of QuantizedMatMul's weights: from a matrix to tiles, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightbeam.plugins.ops.quantized_matmul import GROUP, TILE_COLUMNS, ZERO_POINT

__all__ = ["tiled", "untiled"]

Array = NDArray[Any]


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
    padded = np.zeros((X, -(-Y // TILE_COLUMNS) * TILE_COLUMNS), np.int8)
    padded[:, :Y] = weights
    tiles = padded.reshape(X // GROUP, GROUP, -1, TILE_COLUMNS).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(tiles).view(np.uint8) ^ np.uint8(ZERO_POINT)


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
