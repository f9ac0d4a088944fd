"""Cases of QuantizedSourceAttention, and its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.quantize_rows.cases import quantized_rows
from tightbeam.plugins.ops.source_attention import cases as source_attention

__all__ = ["cases", "exact", "random_case", "rounding", "split_error"]

FINEST = 127 * 128
"""Steps into which the kernel divides a row's largest magnitude (plugins/kernels/cpu/byte_rows.h)."""


def random_case(seed: int, **sizes: Any) -> Case:
    """SourceAttention's case with the same arguments, with quantized keys and values."""
    return _quantized(source_attention.random_case(seed, **sizes))


def cases() -> list[Case]:
    """SourceAttention's cases, one with more positions and numbers than a stretch has, and one with odd rows.

    These are rows of zeros, rows with one outlier, and rows with a huge scale at positions that do not count.
    """
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
    """SourceAttention's definition over the dequantized rows, calculated in ``dtype``."""
    return source_attention.exact(_dequantized(case, dtype), dtype)


def rounding(case: Case) -> dict[str, float]:
    """The error that splitting queries and weights may add to each output, as a root mean square."""
    inputs = _dequantized(case, np.float64).inputs
    counts = np.broadcast_to(inputs["mask"][:, None], inputs["key"].shape[:3])
    K = inputs["key"].shape[-1]
    query = inputs["query"].reshape(len(inputs["query"]), -1, K)
    return split_error(query, inputs["key"][counts], inputs["value"][counts], case.attributes["scale"])


def split_error(query: Array, key: Array, value: Array, scale: float) -> dict[str, float]:
    """Twice the usual error of each output if queries [.., K] and weights are rounded to ``FINEST`` steps.

    A step is a row's largest magnitude divided by ``FINEST``, and rounding errors are evenly distributed in it. Since
    weights add up to 1, an error of the scores changes an output by at most the error times a value.
    """
    steps = np.abs(query).max(axis=-1) / FINEST
    score = np.sqrt(np.mean(steps**2) / 12) * abs(scale) * np.sqrt(np.mean(np.sum(key**2, axis=-1)))
    return {"lse": 2 * score, "output": 2 * (score + 1 / FINEST) * np.sqrt(np.mean(value**2))}


def _dequantized(case: Case, dtype: Any) -> Case:
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
