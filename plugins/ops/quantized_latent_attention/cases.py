"""Cases of QuantizedLatentAttention, and its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.latent_attention import cases as latent_attention
from tightbeam.plugins.ops.quantize_rows.cases import quantized_rows
from tightbeam.plugins.ops.quantized_source_attention.cases import split_error

__all__ = ["cases", "exact", "random_case", "rounding"]


def random_case(seed: int, **sizes: Any) -> Case:
    """LatentAttention's case with the same arguments, with quantized states."""
    return _quantized(latent_attention.random_case(seed, **sizes))


def cases() -> list[Case]:
    """LatentAttention's cases without rotation and key scales, and one with more positions and numbers than a stretch
    has."""
    common = [case for case in latent_attention.cases() if not case.inputs.keys() & {"cosines", "key_scales"}]
    return [*map(_quantized, common), random_case(20, B=1, M=5, H=4, G=1, K=600, N=1100)]


def exact(case: Case, dtype: Any = np.float64) -> dict[str, Array]:
    """LatentAttention's definition over the dequantized rows, calculated in ``dtype``."""
    return latent_attention.exact(_dequantized(case, dtype), dtype)


def rounding(case: Case) -> dict[str, float]:
    """The error that splitting queries and weights may add to each output, as a root mean square."""
    inputs = _dequantized(case, np.float64).inputs
    B, N, E = inputs["states"].shape
    K = inputs["query"].shape[-1]
    keys = inputs["states"].reshape(B, N, E // K, K)
    return split_error(inputs["query"], keys, inputs["states"], case.attributes["scale"])


def _dequantized(case: Case, dtype: Any) -> Case:
    inputs = dict(case.inputs)
    scale = inputs.pop("states_scale").astype(dtype)
    inputs["states"] = inputs.pop("states_bytes").astype(dtype) * scale[..., None]
    return Case(case.name, inputs, case.attributes)


def _quantized(case: Case) -> Case:
    quantized, scale = quantized_rows(case.inputs["states"])
    inputs = {
        "query": case.inputs["query"],
        "states_bytes": quantized,
        "states_scale": scale,
        "mask": case.inputs["mask"],
        **{name: bias for name, bias in case.inputs.items() if name == "key_bias"},
    }
    return Case(case.name, inputs, case.attributes, floats=("query",))
