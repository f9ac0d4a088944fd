"""Matrices rounded to 4 bits: to the nearest number, and with corrections for calibration rows."""

from __future__ import annotations

import numpy as np
import pytest

from tightbeam.export.accuracy.gptq import corrected
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.int4 import LEAST, MOST, Int4Matrix, nearest
from tightbeam.plugins.ops.int4_matmul import BLOCK

X, Y = 96, 50


def matrix(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((X, Y)).astype(np.float32)


def correlated_rows(seed: int, count: int) -> Array:
    """Rows whose numbers depend on one another, as those of models do, with three large channels."""
    mixing = np.random.default_rng(7).standard_normal((X // 4, X))
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((count, X // 4)) @ mixing + 0.5 * generator.standard_normal((count, X))
    rows[:, ::40] *= 8
    return rows.astype(np.float32)


def error(rounded: Int4Matrix, exact: Array, rows: Array) -> float:
    return float(np.linalg.norm(rows @ (rounded.values - exact)) / np.linalg.norm(rows @ exact))


def test_each_number_is_within_half_a_step_or_clipped() -> None:
    """A block's scale makes its error smaller than without clipping, and a column of zeros stays zero."""
    exact = matrix(0)
    exact[:, 3], exact[BLOCK : 2 * BLOCK, 4] = 0, 0
    rounded = nearest(exact)
    steps = np.repeat(rounded.block_scale * rounded.scale, BLOCK, axis=0)
    inside = (rounded.integers > LEAST) & (rounded.integers < MOST)
    assert (np.abs(rounded.values - exact) <= 0.5001 * steps)[inside].all()
    assert inside.mean() > 0.85 and rounded.block_scale.min() >= 1
    assert not rounded.values[:, 3].any() and not rounded.values[BLOCK : 2 * BLOCK, 4].any()
    largest = np.abs(exact.reshape(-1, BLOCK, Y)).max(axis=1, keepdims=True).clip(1e-9) / MOST
    unclipped = np.rint(exact.reshape(-1, BLOCK, Y) / largest) * largest
    assert np.square(rounded.values - exact).sum() < 0.98 * np.square(unclipped.reshape(X, Y) - exact).sum()


@pytest.mark.parametrize("count", [24, 500])
def test_corrections_for_some_rows_help_on_others(count: int) -> None:
    exact, rows, others = matrix(1), correlated_rows(2, count), correlated_rows(3, 300)
    found = corrected(exact, [rows[: count // 2], rows[count // 2 :]])
    assert error(found, exact, others) < (0.9 if count < X else 0.7) * error(nearest(exact), exact, others)
    assert found.integers.dtype == np.int8 and found.block_scale.dtype == np.uint8


def test_rows_that_say_nothing_are_left_out() -> None:
    exact, rows = matrix(1), correlated_rows(2, 100)
    spoiled = np.concatenate([rows, np.full((2, X), np.nan, np.float32), np.full((1, X), np.inf, np.float32)])
    np.testing.assert_array_equal(corrected(exact, [spoiled]).values, corrected(exact, [rows]).values)
    for nothing in ([], [np.zeros((5, X), np.float32)], [rows[:0]]):
        np.testing.assert_array_equal(corrected(exact, nothing).values, nearest(exact).values)
