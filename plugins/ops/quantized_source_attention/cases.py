"""Cases of QuantizedSourceAttention, and its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.quantize_rows.cases import quantized_rows
from tightbeam.plugins.ops.source_attention import cases as source_attention

__all__ = ["cases", "exact", "random_case", "rounding", "split_error"]

FINEST = 127 * 128
"""Steps of a row's largest magnitude that the kernel's numbers have (plugins/kernels/cpu/byte_rows.h)."""


def random_case(seed: int, **sizes: Any) -> Case:
    """The case of SourceAttention with the same arguments, its keys and values in integers."""
    return _quantized(source_attention.random_case(seed, **sizes))


def cases() -> list[Case]:
    """Those of SourceAttention; more positions and numbers than one stretch has; and rows of zeros, of one outlier, and
    of a huge scale where no position counts."""
    odd = random_case(7, B=2, M=3, H=4, G=2, K=24, V=19, N=40)
    odd.inputs["key_bytes"][0, 0, 0] = 0
    odd.inputs["value_bytes"][0, 1, 1:, :] = 0
    odd.inputs["value_bytes"][0, 1, 1:, 3] = -127
    for part in ("key", "value"):
        odd.inputs[f"{part}_scale"][1][:, ~odd.inputs["mask"][1]] = 1e6
    return [
        *map(_quantized, source_attention.cases()),
        Case("odd-rows", odd.inputs, odd.attributes, odd.floats),
        random_case(8, B=1, M=3, H=2, G=1, K=530, V=70, N=1100),
    ]


def exact(case: Case, dtype: Any = np.float64) -> dict[str, Array]:
    """SourceAttention's definition over the rows' worth, calculated in ``dtype``."""
    return source_attention.exact(_worth(case, dtype), dtype)


def rounding(case: Case) -> dict[str, float]:
    """Error that splitting queries and weights may add to each output, as a root mean square."""
    inputs = _worth(case, np.float64).inputs
    counts = np.broadcast_to(inputs["mask"][:, None], inputs["key"].shape[:3])
    K = inputs["key"].shape[-1]
    query = inputs["query"].reshape(len(inputs["query"]), -1, K)
    return split_error(query, inputs["key"][counts], inputs["value"][counts], case.attributes["scale"])


def split_error(query: Array, key: Array, value: Array, scale: float) -> dict[str, float]:
    """Twice the usual error of outputs whose queries [.., K] and weights are rounded to ``FINEST`` steps.

    A step is that of a row's largest number, and a rounding error is evenly distributed in it. An error of the scores
    changes an output by it times a value at most; weights add up to 1.
    """
    steps = np.abs(query).max(axis=-1) / FINEST
    score = np.sqrt(np.mean(steps**2) / 12) * abs(scale) * np.sqrt(np.mean(np.sum(key**2, axis=-1)))
    return {"lse": 2 * score, "output": 2 * (score + 1 / FINEST) * np.sqrt(np.mean(value**2))}


def _worth(case: Case, dtype: Any) -> Case:
    inputs = dict(case.inputs)
    for part in ("key", "value"):
        scale = inputs.pop(f"{part}_scale").astype(dtype)
        inputs[part] = inputs.pop(f"{part}_bytes").astype(dtype) * scale[..., None]
    return Case(case.name, inputs, case.attributes)


def _quantized(case: Case) -> Case:
    key, value = (quantized_rows(case.inputs[name]) for name in ("key", "value"))
    inputs = {
        "query": case.inputs["query"],
        "key_bytes": key[0],
        "key_scale": key[1],
        "value_bytes": value[0],
        "value_scale": value[1],
        "mask": case.inputs["mask"],
        **{name: bias for name, bias in case.inputs.items() if name == "key_bias"},
    }
    return Case(case.name, inputs, case.attributes, floats=("query",))
