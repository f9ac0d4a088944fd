"""Cases of DynamicQuantizeMatMul, and its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.quantize_rows import cases as quantize_rows
from tightbeam.plugins.ops.quantized_matmul import GROUP
from tightbeam.plugins.ops.quantized_matmul import cases as quantized_matmul

__all__ = ["cases", "exact", "random_case"]


def random_case(seed: int, *, R: int, groups: int, spread: float = 0.0, **sizes: Any) -> Case:
    """Random rows, whose magnitudes differ by up to 10 to the power of ``spread``, and a matrix of QuantizedMatMul's
    cases."""
    product = quantized_matmul.random_case(seed, R=R, groups=groups, **sizes)
    rows = quantize_rows.random_case(seed, R=R, X=GROUP * groups, spread=spread).inputs["rows"]
    matrix = {name: array for name, array in product.inputs.items() if name not in ("rows", "row_scale")}
    return Case(product.name, {"rows": rows, **matrix}, product.attributes, floats=("rows", "addend"))


def cases() -> list[Case]:
    """Sizes of one, few and many rows, blocks, rows of different magnitudes, and a row with NaN."""
    poisoned = random_case(5, R=3, groups=4, Y=40, blocks=2)
    poisoned.inputs["rows"][1, 2] = np.nan
    return [
        random_case(0, R=1, groups=1, Y=1),
        random_case(1, R=4, groups=13, Y=33, activation=2, added=True),
        random_case(2, R=7, groups=12, Y=100, blocks=3, added=True, spread=2.0),
        random_case(3, R=101, groups=9, Y=70, activation=1),
        random_case(4, R=300, groups=16, Y=31, blocks=4),
        poisoned,
    ]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``. The rounding of the rows is part of it."""
    rows, blocks = case.inputs["rows"], len(case.inputs["scale"])
    by_block = quantize_rows.exact(Case("", {"rows": rows.reshape(len(rows) * blocks, -1)}))
    inputs = {
        "rows": by_block["quantized"].reshape(rows.shape),
        "row_scale": by_block["scale"].reshape(len(rows), blocks),
        **{name: array for name, array in case.inputs.items() if name != "rows"},
    }
    return quantized_matmul.exact(Case("", inputs, case.attributes), dtype)
