"""The layout of the weights of QuantizedMatMul: to tiles, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightbeam.plugins.ops.quantized_matmul import GROUP, TILE_COLUMNS, ZERO_POINT

__all__ = ["tiled", "untiled"]

Array = NDArray[Any]


def tiled(weights: Array) -> Array:
    """Integers [X, Y] of -127..127 in tiles [Y / 16, X / 4, 16, 4]; X is a multiple of 4."""
    X, Y = weights.shape
    padded = np.zeros((X, -(-Y // TILE_COLUMNS) * TILE_COLUMNS), np.int8)
    padded[:, :Y] = weights
    tiles = padded.reshape(X // GROUP, GROUP, -1, TILE_COLUMNS).transpose(2, 0, 3, 1)
    return np.ascontiguousarray(tiles).view(np.uint8) ^ np.uint8(ZERO_POINT)


def untiled(tiles: Array, Y: int) -> Array:
    """The inverse of :func:`tiled`: integers [X, Y] as int64."""
    weights = tiles.transpose(1, 3, 0, 2).reshape(tiles.shape[1] * GROUP, -1)[:, :Y]
    return weights.astype(np.int64) - ZERO_POINT
