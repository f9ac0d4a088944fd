"""Matrices rounded to 4 and to 8 bits: to the nearest number, and with corrections for calibration rows."""

from __future__ import annotations

import numpy as np
import pytest

from tightbeam.export.accuracy.gptq import correction, to_int4, to_int8
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.int4 import LEAST, MOST, Int4Matrix, nearest
from tightbeam.graph_passes.precision.integers import Int8Matrix
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


def corrected(exact: Array, rows: list[Array]) -> Int4Matrix:
    return to_int4(exact, correction(rows))


def error(rounded: Int4Matrix | Int8Matrix, exact: Array, rows: Array) -> float:
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


@pytest.mark.parametrize("blocks", [1, 3])
def test_8_bits_are_corrected_too(blocks: int) -> None:
    """In blocks, each of which has a scale; integers stay within 127, and columns of zeros are zeros."""
    exact, rows, others = matrix(1), correlated_rows(2, 500), correlated_rows(3, 300)
    exact[5] *= 20
    exact[:, 3] = 0
    found, plain = to_int8(exact, correction([rows]), blocks), to_int8(exact, None, blocks)
    assert found.scale.shape == plain.scale.shape == (blocks, Y)
    assert found.integers.dtype == np.int8 and found.integers.min() >= -127
    assert not found.values[:, 3].any()
    assert error(found, exact, others) < 0.7 * error(plain, exact, others)
    np.testing.assert_array_equal(found.columns(7).values, found.values[:, ::7])


def test_blocks_keep_small_numbers_beside_large_ones() -> None:
    exact = matrix(1)
    exact[5] *= 100
    errors = [np.abs(to_int8(exact, None, blocks).values - exact)[32:].mean() for blocks in (1, 3)]
    assert errors[1] < errors[0] / 20


def test_many_columns_are_rounded_as_few_are() -> None:
    """Parts of a matrix are rounded side by side."""
    rows = correlated_rows(2, 200)
    wide = np.concatenate([matrix(seed) for seed in range(50)], axis=1)
    by = correction([rows])
    whole, part = to_int8(wide, by), to_int8(np.ascontiguousarray(wide[:, 2000:2050]), by)
    same = whole.integers[:, 2000:2050] == part.integers
    assert same.mean() > 0.999  # but for the rounding of sums
    np.testing.assert_allclose(whole.scale[:, 2000:2050], part.scale)
