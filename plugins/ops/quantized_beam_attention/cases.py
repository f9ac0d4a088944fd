"""Cases of QuantizedBeamAttention, and its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.beam_attention import cases as beam_attention
from tightbeam.plugins.ops.beam_attention.cases import attend_history, own_history, write
from tightbeam.plugins.ops.quantize_rows.cases import quantized_rows

__all__ = ["cases", "exact", "random_case"]

PARTS = ("key", "value")


def random_case(seed: int, **sizes: Any) -> Case:
    """BeamAttention's case with the same arguments, with quantized caches."""
    return _quantized(beam_attention.random_case(seed, **sizes))


def cases() -> list[Case]:
    """BeamAttention's cases without a rotation, and one with odd rows: zeros, and a new key with one outlier."""
    odd = random_case(17, B=2, M=3, H=4, G=2, K=24, V=19, T=40, T_max=44)
    odd.inputs["key_cache"][0, 0, 0] = 0
    odd.inputs["value_cache"][0, 1, 1:] = 0
    odd.inputs["projected"][:, 4 * 24 + 1] = 1e4
    odd.inputs["projected"][1, 6 * 24 :] = 0
    plain = [case for case in beam_attention.cases() if "cosines" not in case.inputs]
    return [*map(_quantized, plain), Case("odd-rows", odd.inputs, odd.attributes, odd.floats)]


def exact(case: Case, dtype: Any = np.float64) -> dict[str, Array]:
    """BeamAttention's definition over the dequantized rows, calculated in ``dtype``."""
    ancestry, lengths = case.inputs["ancestry"], case.inputs["lengths"]
    R, G, _, K = case.inputs["key_cache"].shape
    V, M = case.inputs["value_cache"].shape[3], ancestry.shape[1]
    projected = case.inputs["projected"]
    H = (projected.shape[1] - G * (K + V)) // K
    query, key, value = np.split(projected, [H * K, H * K + G * K], axis=1)
    found: dict[str, Array] = {}
    histories = []
    for part, row, width in zip(PARTS, (key, value), (K, V), strict=True):
        integers, scale = quantized_rows(row.reshape(R, G, width))
        cache = write(case.inputs[f"{part}_cache"], integers, lengths, M)
        scales = write(case.inputs[f"{part}_scale_cache"], scale[..., None], lengths, M)
        found |= {f"{part}_cache_out": cache, f"{part}_scale_cache_out": scales}
        histories.append(own_history(cache.astype(dtype) * scales.astype(dtype), ancestry))
    keys, values = histories
    output = attend_history(case, query.astype(dtype).reshape(R, H, K), keys, np.repeat(values, H // G, axis=1))
    return {"output": output.reshape(R, H * V), **found}


def _quantized(case: Case) -> Case:
    inputs = {"projected": case.inputs["projected"]}
    for part in PARTS:
        integers, scale = quantized_rows(case.inputs[f"{part}_cache"])
        inputs |= {f"{part}_cache": integers, f"{part}_scale_cache": scale[..., None]}
    inputs |= {name: array for name, array in case.inputs.items() if name not in (*inputs, "key_cache", "value_cache")}
    floats = tuple(name for name in case.floats if not name.endswith("cache"))
    return Case(case.name, inputs, case.attributes, floats)
