"""The constants of ScreenedLinear: integers of a matrix, and a proven bound of their error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightbeam.plugins.ops._split_rows import STEPS
from tightbeam.plugins.ops.quantized_matmul.layout import tiled

__all__ = ["HALF_STEP", "OPERATIONS", "UNIT", "Screen", "screen_of"]

Array = NDArray[Any]
UNIT = 2.0**-24
"""Relative rounding of one operation in float32."""
OPERATIONS = 64
"""More than the operations of an estimate, of a bound, and of a logit beside its X sums."""
HALF_STEP = 0.52
"""Largest error of a number of a row in steps of its digits, with the rounding of the scale and of the factor."""


@dataclass(frozen=True)
class Screen:
    """The constants of a matrix [X, Y].

    Attributes
    ----------
    integers : uint8 [ceil(Y / 16), X / 4, 16, 4]
    scale : float32 [Y]
    error : float32 [Y]
        |estimate - logit| <= error |row|, beside the rounding of the bias, for all rows.
    """

    integers: Array
    scale: Array
    error: Array


def screen_of(weights: Array) -> Screen:
    """Make the constants of a matrix.

    The error of a column is the sum of three terms, each by the inequality of Cauchy and Schwarz. A row is x, its
    rounded digits x', a column w, its integers times their scale w'.

        |x w - x' w'|  <=  |x| |w - w'|  +  |x - x'| |w'|
        |x - x'|       <=  sqrt(X) HALF_STEP max|x| / STEPS,  and max|x| <= |x|
        rounding       <=  (X + OPERATIONS) UNIT |x| |w|

    Parameters
    ----------
    weights
        The matrix float32 [X, Y], finite; X is a multiple of 4.

    Returns
    -------
    Screen
    """
    X, Y = weights.shape
    scale = np.maximum(np.abs(weights).max(axis=0) / np.float32(127), np.finfo(np.float32).tiny)
    integers = np.empty((X, Y), np.int8)
    error = np.empty(Y)
    for first in range(0, Y, 4096):  # a part at a time, since float64 takes four times the bytes
        part = slice(first, first + 4096)
        columns = weights[:, part].astype(np.float64)
        integers[:, part] = np.clip(np.rint(columns / scale[part]), -127, 127)
        rounded = integers[:, part] * scale[part].astype(np.float64)
        lost, length = (np.sqrt(np.square(each).sum(axis=0)) for each in (columns - rounded, rounded))
        of_rows = np.sqrt(X) * HALF_STEP / STEPS * length
        error[part] = lost + of_rows + (X + OPERATIONS) * UNIT * (length + lost)
    above = np.nextafter((error * (1 + 1e-6)).astype(np.float32), np.float32(np.inf))
    return Screen(tiled(integers), scale.astype(np.float32), above)
