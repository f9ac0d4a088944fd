"""Cases of SplitRowsHeadMatMul, and its definition in numpy."""

from __future__ import annotations

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.head_matmul import cases as head_matmul
from tightbeam.plugins.ops.head_matmul.cases import cases, random_case
from tightbeam.plugins.ops.split_rows_matmul import cases as split_rows_matmul

__all__ = ["cases", "exact", "random_case"]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``. The rounding of the rows is part of it."""
    return head_matmul.by_head(case, split_rows_matmul.exact, dtype)
