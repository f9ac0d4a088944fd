"""The layout of Linear's weights: from a matrix to tiles, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightbeam.plugins.ops.quantized_matmul import TILE_COLUMNS

__all__ = ["tiled", "untiled"]

Array = NDArray[Any]


def tiled(weights: Array) -> Array:
    """Put a matrix into tiles of 16 columns.

    Parameters
    ----------
    weights
        The matrix [X, Y], of any type.

    Returns
    -------
    array
        Tiles [ceil(Y / 16), X, 16] of the same type. Zeros fill the last one.
    """
    X, Y = weights.shape
    tiles = np.zeros((-(-Y // TILE_COLUMNS), X, TILE_COLUMNS), weights.dtype)
    whole = Y // TILE_COLUMNS * TILE_COLUMNS
    tiles[: whole // TILE_COLUMNS] = weights[:, :whole].reshape(X, -1, TILE_COLUMNS).transpose(1, 0, 2)
    if whole < Y:
        tiles[-1, :, : Y - whole] = weights[:, whole:]
    return tiles


def untiled(tiles: Array, Y: int) -> Array:
    """Take a matrix out of its tiles; the inverse of :func:`tiled`.

    Parameters
    ----------
    tiles
        Tiles [ceil(Y / 16), X, 16].
    Y
        Number of columns.

    Returns
    -------
    array
        The matrix [X, Y].
    """
    return np.ascontiguousarray(tiles.transpose(1, 0, 2).reshape(tiles.shape[1], -1)[:, :Y])
