"""The layout of the weights of Linear: to tiles, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightbeam.plugins.ops.quantized_matmul import TILE_COLUMNS

__all__ = ["tiled", "untiled"]

Array = NDArray[Any]


def tiled(weights: Array) -> Array:
    """A matrix [X, Y] in tiles [Y / 16, X, 16]; the columns of the last one are padded with zeros."""
    X, Y = weights.shape
    tiles = np.zeros((-(-Y // TILE_COLUMNS), X, TILE_COLUMNS), weights.dtype)
    whole = Y // TILE_COLUMNS * TILE_COLUMNS
    tiles[: whole // TILE_COLUMNS] = weights[:, :whole].reshape(X, -1, TILE_COLUMNS).transpose(1, 0, 2)
    if whole < Y:
        tiles[-1, :, : Y - whole] = weights[:, whole:]
    return tiles


def untiled(tiles: Array, Y: int) -> Array:
    """The inverse of :func:`tiled`: the matrix [X, Y]."""
    return np.ascontiguousarray(tiles.transpose(1, 0, 2).reshape(tiles.shape[1], -1)[:, :Y])
