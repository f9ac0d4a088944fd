"""Rounding to 4 bits that corrects itself: GPTQ (Frantar et al., arXiv 2210.17323).

The product's error on calibration rows x is |x (W - Q)|^2 = (W - Q)^T H (W - Q), with H = x^T x. The rows of W are
rounded one after the other. Each rounding error is spread over the rows that are not yet rounded, so that they correct
it as well as they can for these calibration rows:

    W_j -= (W_i - Q_i) (U_ij / U_ii)        j > i, with the upper Cholesky factor U of H^-1 = U^T U

The scale of a block of 32 rows is chosen when the block is reached, from its corrected weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.int4 import LEAST, MOST, Int4Matrix, column_scales, nearest, rounded_block
from tightbeam.plugins.ops.int4_matmul import BLOCK

__all__ = ["ROWS_TO_FIT", "corrected"]

ROWS_TO_FIT = 1024
"""Rows of each product, at most: with more, an export needs gigabytes."""
DAMPING = 0.1
"""Added to the diagonal of H, in units of its mean. Calibration rows are few, and corrections that fit them alone would
be errors on other rows."""


def corrected(matrix: Array, rows: Sequence[Array]) -> Int4Matrix:
    """Round a matrix to 4 bits so that its products with rows err as little as possible.

    Parameters
    ----------
    matrix
        Finite numbers [X, Y]; X is a multiple of 32.
    rows
        Calibration rows [., X] of each reader of the matrix; rows with NaN or infinite numbers are left out.

    Returns
    -------
    Int4Matrix
        Integers and scales. Without rows, each number is rounded to the nearest.
    """
    upper = _factor(len(matrix), rows)
    if upper is None:
        return nearest(matrix)
    diagonal = np.diag(upper)
    rest = matrix.astype(np.float32)
    scale = column_scales(rest)
    integers = np.empty(rest.shape, np.int8)
    block_scale = np.empty((len(rest) // BLOCK, rest.shape[1]), np.uint8)
    for first in range(0, len(rest), BLOCK):
        end = first + BLOCK
        _, block_scale[first // BLOCK] = rounded_block(rest[first:end], scale, 1 / np.square(diagonal[first:end]))
        own = block_scale[first // BLOCK] * scale
        errors = np.empty((BLOCK, rest.shape[1]), np.float32)
        for i in range(first, end):
            integers[i] = np.rint(rest[i] / own).clip(LEAST, MOST)
            error = errors[i - first] = (rest[i] - integers[i] * own) / diagonal[i]
            rest[i + 1 : end] -= np.outer(upper[i, i + 1 : end], error)
        rest[end:] -= upper[first:end, end:].T @ errors
    return Int4Matrix(integers, block_scale, scale)


def _factor(width: int, rows: Sequence[Array]) -> Array | None:
    """The upper Cholesky factor of H^-1, float32 [X, X]; None without rows, and for rows of zeros."""
    H = np.zeros((width, width))
    for part in rows:
        finite = part[np.isfinite(part).all(axis=1)].astype(np.float64)
        H += finite.T @ finite
    mean = float(np.diag(H).mean())
    if not (0 < mean < np.inf):
        return None
    H[np.diag_indices(width)] += DAMPING * mean
    return np.asarray(np.linalg.cholesky(np.linalg.inv(H)).T.astype(np.float32))
