"""The directions along which the logits of an int8 model are estimated, chosen on real rows.

    rows    x [n, X] of the last product, which are divided: half choose, half measure
    T_K     the K first eigenvectors of  x'x / |x|^2 + W W' / |W|^2
    cost    K / X + ONE_ROW times the share of tiles of columns whose bound reaches the best logit

Both sums count: a direction along which neither rows nor columns are long adds little to any logit. With few rows the
columns say more, and rows of trained models are longest along few directions. The tiles are counted as the kernel of
ScreenedQuantizedMatMul counts them. Only a sample of the tiles is tried, with the tile of each row's best token in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tightbeam.export.counts import count
from tightbeam.export.errors import ExportError
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.integers import quantized_columns
from tightbeam.plugins.ops.quantized_matmul import TILE_COLUMNS
from tightbeam.plugins.ops.quantized_matmul.layout import untiled
from tightbeam.plugins.ops.screened_linear.layout import HALF_STEP
from tightbeam.plugins.ops.screened_quantized_matmul.layout import screen_of

__all__ = ["ROWS_TO_CHOOSE", "STEPS_TO_CHOOSE", "ScreenChoice", "choose_directions"]

SHARES = (0.25, 0.375, 0.5, 0.625, 0.75)
"""Directions that are tried, as shares of X."""
MOST_COST = 0.8
"""Multiplications for the logits of a screened step, over those for all logits; an export with more is refused."""
ONE_ROW = 8
"""Time of a tile that one row multiplies alone, over its time for each row of a batch."""
SAMPLED = 512
"""Tiles of columns that are sampled."""
ROWS_TO_CHOOSE, STEPS_TO_CHOOSE = 4096, 128
"""Rows, and steps of a calibration input, at most. Directions need more rows than a row has numbers."""
FEWEST_ROWS = 8
PART = 4096
"""Columns that are taken at a time, since float64 takes twice the bytes."""


@dataclass(frozen=True)
class ScreenChoice:
    """Directions, and what they cost.

    Attributes
    ----------
    directions : float32 [X, K]
        Orthonormal columns.
    tiles : float
        Share of the tiles of columns whose logits are computed, on rows that did not choose the directions.
    """

    directions: Array
    tiles: float

    def __str__(self) -> str:
        X, K = self.directions.shape
        return f"logits of greedy steps: estimated from {K} of {X} numbers of a row, {self.tiles:.2%} of them computed"


def choose_directions(rows: Array, matrix: Array, bias: Array | None) -> ScreenChoice:
    """Choose how many directions there are, and which.

    Parameters
    ----------
    rows
        float32 [n, X], rows of the last product on calibration inputs.
    matrix
        float32 [X, Y].
    bias
        float32 of Y numbers; None for zeros.

    Returns
    -------
    ScreenChoice
        The cheapest one.

    Raises
    ------
    ExportError
        There are too few rows, or the cheapest choice saves less than a fifth.
    """
    count("choosing the directions of logits")
    rows = rows[np.isfinite(rows).all(axis=1)].astype(np.float64)
    if len(rows) < FEWEST_ROWS or matrix.shape[0] < 2 * TILE_COLUMNS:
        raise ExportError(
            f"screen_logits needs {FEWEST_ROWS} rows of {2 * TILE_COLUMNS} numbers to choose how to estimate logits in "
            f"int8, the calibration inputs give {len(rows)} of {matrix.shape[0]}; pass more, or leave it out"
        )
    added = np.zeros(matrix.shape[1], np.float32) if bias is None else bias.reshape(-1)
    of_columns = _covariance(matrix)
    axes = _axes(rows[::2], of_columns)
    measured = rows[1::2]
    columns = _sampled(measured, matrix, added)
    sample, sample_bias = np.ascontiguousarray(matrix[:, columns]), added[columns]
    X, K, tiles, cost = matrix.shape[0], 0, 1.0, np.inf
    for share in SHARES:
        width = max(1, round(share * X / TILE_COLUMNS)) * TILE_COLUMNS
        found = _computed(measured, _orthonormal(axes[:, :width]), sample, sample_bias)
        if (own := width / X + ONE_ROW * found) < cost:
            K, tiles, cost = width, found, own
    if cost > MOST_COST:
        raise ExportError(
            f"screen_logits would save little: by {K} of {X} numbers of a row, {tiles:.1%} of the tokens may be the "
            f"best, with directions chosen on {len(rows)} rows; leave it out, or give more inputs with --calibration"
        )
    return ScreenChoice(_orthonormal(_axes(rows, of_columns)[:, :K]), tiles)


def _covariance(matrix: Array) -> Array:
    """W W' / |W|^2, float64 [X, X]."""
    total = np.zeros((len(matrix), len(matrix)))
    for first in range(0, matrix.shape[1], PART):
        part = matrix[:, first : first + PART].astype(np.float64)
        total += part @ part.T
    return np.asarray(total / max(np.trace(total), np.finfo(np.float64).tiny))


def _axes(rows: Array, of_columns: Array) -> Array:
    """float64 [X, X], the most important directions first."""
    of_rows = rows.T @ rows
    axes: Array
    _, axes = np.linalg.eigh(of_rows / max(np.trace(of_rows), np.finfo(np.float64).tiny) + of_columns)
    return axes[:, ::-1]


def _orthonormal(axes: Array) -> Array:
    return np.ascontiguousarray(axes.astype(np.float32))


def _sampled(rows: Array, matrix: Array, bias: Array) -> Array:
    """Columns, int64: all of SAMPLED tiles at even distances, and of the tiles that hold the best token of a row."""
    whole = matrix.shape[1] // TILE_COLUMNS
    best = np.concatenate(
        [
            np.argmax(rows[first : first + 64].astype(np.float32) @ matrix + bias, axis=1)
            for first in range(0, len(rows), 64)
        ]
    )
    evenly = np.linspace(0, whole - 1, min(SAMPLED, whole)).round().astype(np.int64)
    tiles = np.unique(np.concatenate([evenly, np.minimum(best // TILE_COLUMNS, whole - 1)]))
    return np.asarray((tiles[:, None] * TILE_COLUMNS + np.arange(TILE_COLUMNS)).reshape(-1))


def _computed(rows: Array, directions: Array, matrix: Array, bias: Array) -> float:
    """The share of tiles whose bound reaches the best logit, as the kernel finds it but for what float32 loses."""
    weights, scale = quantized_columns(matrix)
    screen = screen_of(directions, weights, scale[0], bias)
    numbers, _ = _rounded(rows)
    head = numbers @ directions.astype(np.float64)
    rounded, step = _rounded(head)
    integers = untiled(screen.integers, len(bias)) * screen.integer_scale.astype(np.float64)
    estimates = rounded @ integers + bias
    along = np.linalg.norm(head, axis=1)
    rest = np.sqrt(np.maximum(np.square(numbers).sum(axis=1) - along**2, 0))
    rounding = HALF_STEP * np.sqrt(head.shape[1]) * step
    error = np.stack([along, rest, rounding, np.ones(len(rows))], axis=1) @ screen.error.astype(np.float64)
    best = estimates.reshape(len(rows), -1, TILE_COLUMNS).max(axis=2)
    first = best.argmax(axis=1)[:, None] * TILE_COLUMNS + np.arange(TILE_COLUMNS)  # the tile of the best estimate
    logits = np.einsum("rx,xrc->rc", numbers, (weights * scale)[:, first]) + bias[first]
    return float((best + error >= logits.max(axis=1, keepdims=True)).mean())


def _rounded(rows: Array) -> tuple[Array, Array]:
    """Rows float64 [n, X] as integers of 8 bits give them, and the step [n] of each."""
    integers, step = quantized_columns(rows.T)
    return (integers * step.astype(np.float64)).T, step[0]
