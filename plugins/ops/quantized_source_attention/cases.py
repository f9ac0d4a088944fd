"""Cases of QuantizedSourceAttention, and its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.quantize_rows.cases import quantized_rows
from tightbeam.plugins.ops.source_attention import cases as source_attention

__all__ = ["cases", "exact", "random_case"]


def random_case(seed: int, **sizes: Any) -> Case:
    """The case of SourceAttention with the same arguments, its keys and values in integers."""
    return _quantized(source_attention.random_case(seed, **sizes))


def cases() -> list[Case]:
    """Those of SourceAttention, and rows of zeros, of one outlier, and of scale NaN where no position counts."""
    odd = random_case(7, B=2, M=3, H=4, G=2, K=24, V=19, N=40)
    odd.inputs["key_bytes"][0, 0, 0] = 0
    odd.inputs["value_bytes"][0, 1, 1:, :] = 0
    odd.inputs["value_bytes"][0, 1, 1:, 3] = -127
    hidden = ~odd.inputs["mask"][1]
    assert hidden.any()
    return [*map(_quantized, source_attention.cases()), odd]


def exact(case: Case, dtype: Any = np.float64) -> dict[str, Array]:
    """SourceAttention's definition over the rows' worth, calculated in ``dtype``."""
    inputs = dict(case.inputs)
    for part in ("key", "value"):
        scale = inputs.pop(f"{part}_scale").astype(dtype)
        inputs[part] = inputs.pop(f"{part}_bytes").astype(dtype) * scale[..., None]
    return source_attention.exact(Case(case.name, inputs, case.attributes), dtype)


def _quantized(case: Case) -> Case:
    key, value = (quantized_rows(case.inputs[name]) for name in ("key", "value"))
    inputs = {
        "query": case.inputs["query"],
        "key_bytes": key[0],
        "key_scale": key[1],
        "value_bytes": value[0],
        "value_scale": value[1],
        "mask": case.inputs["mask"],
    }
    return Case(case.name, inputs, case.attributes, floats=("query",))
