"""The constants of ScreenedQuantizedMatMul: a matrix along a few directions, and a proven bound of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightbeam.plugins.ops.linear.layout import tiled as float_tiles
from tightbeam.plugins.ops.quantized_matmul import TILE_COLUMNS
from tightbeam.plugins.ops.quantized_matmul.layout import tiled
from tightbeam.plugins.ops.screened_linear.layout import OPERATIONS, UNIT

__all__ = ["Screen", "screen_of"]

Array = NDArray[Any]
OF_BIAS = 1e-5
"""Rounding that the bias adds to an estimate and to a logit, as a share of it."""
OF_UNDERFLOW = 1e-30
"""More than all numbers that become zero could add."""
MOST_SKEW = 1e-5
"""Largest norm of the directions' products with one another less the unit matrix; the kernel knows it."""
PART = 4096
"""Columns that are taken at a time, since float64 takes eight times the bytes."""


@dataclass(frozen=True)
class Screen:
    """The constants of a matrix [X, Y] and K directions.

    Attributes
    ----------
    directions : float32 [K / 16, X, 16]
    integers : uint8 [ceil(Y / 16), K / 4, 16, 4]
    integer_scale : float32 [Y]
    error : float32 [4, ceil(Y / 16)]
        |estimate - logit| <= |y| error[0] + |t| error[1] + |y - y'| error[2] + error[3] for the columns of a tile.
    """

    directions: Array
    integers: Array
    integer_scale: Array
    error: Array


def screen_of(directions: Array, weights: Array, scale: Array, bias: Array) -> Screen:
    """Make the constants.

    A row is x, its head y = x T, the head's integers times their scale y', its rest t = x - y T'. A column is w, its
    head h = T' w, its integers times their scale c, what they lose r = w - T c. D = T' T - 1 and skew = |D|. Then
    x w = y' c + (y - y') c + x r, and by the inequality of Cauchy and Schwarz

        |(y - y') c|  <=  |y - y'| |c|
        |x r|         <=  |y| |T' r| (1 + skew) + |t| |r - T T' r|
        |T' r|        <=  |h - c| + skew |c|
        |r - T T' r|  <=  |w - T h| + (1 + skew) skew |c|,     |w - T h|^2 <= |w|^2 - (1 - skew) |h|^2
        rounding      <=  OPERATIONS UNIT (|x| |w| + |y'| |c|),    |x| <= 1.01 |y| + |t| and |y'| <= 2 |x|

    The lengths of a row are the kernel's, which adds what they lose.

    Parameters
    ----------
    directions
        T, float32 [X, K]: orthonormal columns; K is a multiple of 16.
    weights, scale
        The matrix: integers [X, Y] of -127 to 127, and float32 [Y].
    bias
        float32 [Y], finite or -inf.

    Returns
    -------
    Screen

    Raises
    ------
    ValueError
        The directions are not orthonormal.
    """
    T = directions.astype(np.float64)
    skew = float(np.linalg.norm(T.T @ T - np.eye(T.shape[1])))
    if not skew <= MOST_SKEW:
        raise ValueError(f"the directions are {skew:.2g} from orthonormal, expected at most {MOST_SKEW:g}")
    K, Y = T.shape[1], weights.shape[1]
    integers = np.empty((K, Y), np.int8)
    integer_scale = np.empty(Y, np.float32)
    error = np.empty((4, Y))
    for first in range(0, Y, PART):
        part = slice(first, first + PART)
        columns = weights[:, part] * scale[part].astype(np.float64)
        head = T.T @ columns
        own = np.maximum(np.abs(head).max(axis=0).astype(np.float32) / np.float32(127), np.finfo(np.float32).tiny)
        integer_scale[part] = own
        integers[:, part] = np.clip(np.rint(head / own), -127, 127)
        rounded = integers[:, part] * own.astype(np.float64)
        length, whole, along = _lengths(rounded), _lengths(columns), _lengths(head - rounded) + skew * _lengths(rounded)
        squares = whole**2 * (1 + 1e-12) - (1 - skew) * _lengths(head) ** 2
        rest = np.sqrt(np.maximum(squares, 0)) + (1 + skew) * skew * length
        rounding = OPERATIONS * UNIT * (whole + 2 * length)
        fixed = OF_BIAS * np.abs(np.where(np.isfinite(bias[part]), bias[part], 0).astype(np.float64)) + OF_UNDERFLOW
        error[:, part] = along * (1 + skew) + 1.01 * rounding, rest + rounding, length, fixed
    padded = np.pad(error, ((0, 0), (0, -Y % TILE_COLUMNS)))
    error = padded.reshape(4, -1, TILE_COLUMNS).max(axis=2)
    above = np.nextafter((error * (1 + 1e-5)).astype(np.float32), np.float32(np.inf))
    return Screen(float_tiles(directions), tiled(integers), integer_scale, above)


def _lengths(columns: Array) -> Array:
    """float64 [Y] of columns [., Y]."""
    found: Array = np.sqrt(np.square(columns).sum(axis=0))
    return found
