"""Rounding to 8 and to 4 bits that corrects itself: GPTQ (Frantar et al., arXiv 2210.17323).

The product's error on calibration rows x is |x (W - Q)|^2 = (W - Q)^T H (W - Q), with H = x^T x. The rows of W are
rounded one after the other. Each rounding error is spread over the rows that are not yet rounded, so that they correct
it as well as they can for these calibration rows:

    W_j -= (W_i - Q_i) (U_ij / U_ii)        j > i, with the upper Cholesky factor U of H^-1 = U^T U

Rows are rounded in the order of H's diagonal, the largest first: what is multiplied by large numbers is corrected by
all others. In SmolLM2-135M that leaves a third less divergence than the order of the matrix does. Scales are therefore
chosen before the first row is rounded: the best of a few, by an error in which a row counts 1 / U_ii^2.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision import int4, integers
from tightbeam.graph_passes.precision.int4 import Int4Matrix, column_scales, rounded_block
from tightbeam.graph_passes.precision.integers import Int8Matrix
from tightbeam.plugins.ops.int4_matmul import BLOCK

__all__ = ["ROWS_TO_FIT", "STEPS_TO_FIT", "Correction", "correction", "to_int4", "to_int8"]

ROWS_TO_FIT = 1024
"""Rows of each product, at most: with more, an export needs gigabytes."""
STEPS_TO_FIT = 24
"""Steps of the decoder that give rows, at most."""
DAMPING = 0.1
"""Added to the diagonal of H, in units of its mean. Calibration rows are few, and corrections that fit them alone would
be errors on other rows."""
FACTORS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)
"""Scales of a column in 8 bits that are tried, in units of the one that rounds its largest number to 127."""
COLUMNS = 1024
"""Columns that are rounded together: their part of the matrix stays in a core's cache."""
ROWS = 32
"""Rows whose corrections of the rows after them are gathered into one product."""


@dataclass(frozen=True)
class Correction:
    """Corrections of a matrix's rows by one another.

    Attributes
    ----------
    order : int64 [X]
        Rows in the order in which they are rounded.
    upper : float32 [X, X]
        The factor U, in that order.
    """

    order: Array
    upper: Array

    @property
    def weights(self) -> Array:
        """Weights of the squared errors of the rows, float32 [X], in the matrix's own order."""
        counts = np.empty(len(self.order), np.float32)
        counts[self.order] = 1 / np.square(np.diag(self.upper))
        return counts


def correction(rows: Sequence[Array]) -> Correction | None:
    """The correction that calibration rows [., X] give; None without finite rows, and for rows of zeros."""
    H: Array | float = 0.0
    for part in rows:
        finite = part[np.isfinite(part).all(axis=1)]
        H = H + finite.T @ finite
    if isinstance(H, float) or not 0 < (mean := float(np.diag(H).mean())) < np.inf:
        return None
    H[np.diag_indices(len(H))] += DAMPING * mean
    order = np.argsort(-np.diag(H), kind="stable")
    # H = R R^T with R upper triangular, from the Cholesky factor of the reversed matrix; then U is R^-1.
    reversed_ = torch.from_numpy(np.ascontiguousarray(H[np.ix_(order, order)][::-1, ::-1]))
    R = torch.linalg.cholesky(reversed_).flip(0, 1)
    upper = torch.linalg.solve_triangular(R, torch.eye(len(R), dtype=R.dtype), upper=True)
    return Correction(order, upper.numpy())


def to_int8(matrix: Array, by: Correction | None, blocks: int = 1) -> Int8Matrix:
    """Round a matrix to 8 bits so that its products with calibration rows err as little as possible.

    Parameters
    ----------
    matrix
        Finite numbers [X, Y].
    by
        Of these rows; None rounds each number to the nearest.
    blocks
        Blocks of a column, each with a scale; a divisor of X.

    Returns
    -------
    Int8Matrix
        Integers, and their scales.
    """
    X, Y = matrix.shape
    found, scale = np.empty((X, Y), np.int8), np.empty((blocks, Y), np.float32)
    width = X // blocks

    def round_columns(columns: slice) -> None:
        part = matrix[:, columns].astype(np.float32)
        for block in range(blocks):
            rows = slice(block * width, (block + 1) * width)
            if by is None:
                found[rows, columns], scale[block, columns] = integers.quantized_columns(part[rows])
            else:
                scale[block, columns] = _scales(part[rows], by.weights[rows])
        if by is not None:
            steps = scale[:, columns]
            found[:, columns] = _rounded(part, by, lambda row: steps[row // width], -integers.MOST, integers.MOST)

    _in_parts(Y, round_columns)
    return Int8Matrix(found, scale)


def to_int4(matrix: Array, by: Correction | None) -> Int4Matrix:
    """The same with 4 bits, and a scale for each block of 32 numbers of a column; X is a multiple of 32."""
    if by is None:
        return int4.nearest(matrix)
    X, Y = matrix.shape
    scale = column_scales(matrix)
    found, block_scale = np.empty((X, Y), np.int8), np.empty((X // BLOCK, Y), np.uint8)

    def round_columns(columns: slice) -> None:
        part, own, weights = matrix[:, columns].astype(np.float32), scale[columns], by.weights
        for block, first in enumerate(range(0, X, BLOCK)):
            rows = slice(first, first + BLOCK)
            _, block_scale[block, columns] = rounded_block(part[rows], own, weights[rows])
        steps = block_scale[:, columns] * own
        found[:, columns] = _rounded(part, by, lambda row: steps[row // BLOCK], int4.LEAST, int4.MOST)

    _in_parts(Y, round_columns)
    return Int4Matrix(found, block_scale, scale)


def _in_parts(Y: int, round_columns: Callable[[slice], None]) -> None:
    """Round a matrix of Y columns, parts of them side by side."""
    parts = [slice(first, first + COLUMNS) for first in range(0, Y, COLUMNS)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(round_columns, parts))


def _scales(matrix: Array, weights: Array) -> Array:
    """The scale of each column of a matrix [X, Y] with the least error, float32 [Y]."""
    largest = np.abs(matrix).max(axis=0)
    largest = np.where(largest > integers.SMALLEST, largest, 1) / integers.MOST
    least, found = np.full(len(largest), np.inf, np.float32), largest
    for factor in FACTORS:
        steps = largest * np.float32(factor)
        errors = np.rint(matrix / steps).clip(-integers.MOST, integers.MOST)
        errors *= steps
        errors -= matrix
        error = weights @ np.square(errors, out=errors)
        better = error < least
        least, found = np.where(better, error, least), np.where(better, steps, found)
    return found.astype(np.float32)


def _rounded(matrix: Array, by: Correction, steps: Callable[[int], Array], least: int, most: int) -> Array:
    """Integers int8 [X, Y] of a matrix, whose row i has the scales ``steps(i)`` [Y]."""
    rest, upper = matrix[by.order], by.upper
    integers_ = np.empty(matrix.shape, np.int8)
    for first in range(0, len(rest), ROWS):
        end = min(first + ROWS, len(rest))
        errors = np.empty((end - first, rest.shape[1]), np.float32)
        for i in range(first, end):
            row = int(by.order[i])
            own = steps(row)
            rounded = np.rint(rest[i] / own).clip(least, most)
            integers_[row] = rounded
            errors[i - first] = (rest[i] - rounded * own) / upper[i, i]
            rest[i + 1 : end] -= upper[i, i + 1 : end, None] * errors[i - first]
        rest[end:] -= upper[first:end, end:].T @ errors
    return integers_
