"""Cases of SplitRowsMatMul, and its definition in numpy."""

from __future__ import annotations

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops._split_rows import STEPS
from tightbeam.plugins.ops.dynamic_quantize_matmul.cases import cases as unsplit_cases
from tightbeam.plugins.ops.dynamic_quantize_matmul.cases import random_case
from tightbeam.plugins.ops.quantized_matmul import cases as quantized_matmul

__all__ = ["cases", "exact", "random_case", "rounded_rows"]


def cases() -> list[Case]:
    """DynamicQuantizeMatMul's cases, all heights of a tile of rows, and a number far larger than the others."""
    outlier = random_case(20, R=5, groups=40, Y=50)
    outlier.inputs["rows"][2, 7] = 5e3
    return [
        *unsplit_cases(),
        *(random_case(21, R=R, groups=5, Y=33) for R in range(2, 14)),
        random_case(22, R=170, groups=2816, Y=36, activation=2, added=True),
        random_case(24, R=20, groups=320, Y=40),
        *(random_case(23, R=R, groups=32, Y=33) for R in (8, 9, 16, 17, 50)),
        outlier,
    ]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``. The rounding of the rows is part of it."""
    inputs = dict(case.inputs)
    integers, scale = rounded_rows(inputs.pop("rows"), len(inputs["scale"]))
    return quantized_matmul.exact(Case("", {"rows": integers, "row_scale": scale, **inputs}, case.attributes), dtype)


def rounded_rows(rows: Array, blocks: int) -> tuple[Array, Array]:
    """Integers int32 [R, X] of at most ``STEPS``, and float32 scales [R, blocks]."""
    by_block = rows.astype(np.float32).reshape(len(rows), blocks, -1)
    finite = np.isfinite(by_block).all(axis=2, keepdims=True)
    numbers = np.where(finite, by_block, 0)
    largest = np.maximum(np.abs(numbers).max(axis=2, keepdims=True), np.float32(1e-30))
    integers = np.rint(numbers * (np.float32(STEPS) / largest)).astype(np.int32)
    scale = np.where(finite, largest / np.float32(STEPS), np.float32(np.nan))
    return integers.reshape(rows.shape), scale[..., 0]
