"""Cases of BeamLatentAttention, and its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.beam_attention.cases import (
    attend_history,
    history_attributes,
    history_name,
    own_history,
    possible_ancestry,
    random_options,
    write,
)

__all__ = ["cases", "exact", "random_case"]


def random_case(
    seed: int,
    *,
    B: int,
    M: int,
    H: int,
    G: int,
    K: int,
    T: int,
    T_max: int,
    window: int = 0,
    scaled: bool = False,
    spread: float = 1.0,
    lengths: Any = None,
    softcap: float = 0.0,
    **options: Any,
) -> Case:
    """Random numbers and a possible ancestry, with the ``options`` of ``random_options``. ``spread`` makes the softmax
    sharp."""
    generator = np.random.default_rng(seed)

    def numbers(*shape: int) -> Array:
        return generator.standard_normal(shape).astype(np.float32)

    counted = generator.integers(1, T + 1, B) if lengths is None else np.asarray(lengths)
    inputs: dict[str, Array] = {
        "query": numbers(B * M, H * K) * np.float32(spread),
        "row": numbers(B * M, G * K),
        "cache": numbers(B * M, G, T_max, K),
        "ancestry": possible_ancestry(generator, B, M, counted, T),
        "lengths": counted.astype(np.int32),
    }
    inputs |= random_options(generator, B=B, M=M, H=H, T_max=T_max, width=H * G * K, **options)
    if scaled:
        inputs["row_scales"] = np.exp(numbers(B * M, G))
        inputs["scale_cache"] = np.exp(numbers(B * M, G, T_max, 1))
    sizes = f"B{B}-M{M}-H{H}-G{G}-K{K}-T{T}of{T_max}-window{window}"
    name = history_name(sizes, seed, softcap, {**options, "scaled": scaled})
    floats = ("query", "row", "cache", *({"prefix_output"} & inputs.keys()))
    return Case(name, inputs, history_attributes(K, window, softcap), floats)


def cases() -> list[Case]:
    """Odd and adversarial cases: the X form (G = 1), the K form (G = H), each option alone, and all together."""
    return [
        random_case(0, B=1, M=1, H=1, G=1, K=1, T=1, T_max=1),
        random_case(1, B=2, M=4, H=4, G=4, K=16, T=30, T_max=41),
        random_case(2, B=2, M=2, H=4, G=1, K=48, T=19, T_max=20),
        random_case(3, B=2, M=3, H=6, G=2, K=6, T=9, T_max=9, window=4),
        random_case(4, B=2, M=2, H=4, G=4, K=8, T=20, T_max=21, rotary=8),
        random_case(5, B=2, M=4, H=4, G=4, K=12, T=33, T_max=40, bias=True),
        random_case(6, B=2, M=4, H=4, G=1, K=20, T=12, T_max=12, prefix=True),
        random_case(
            7, B=3, M=3, H=6, G=3, K=10, T=50, T_max=60, window=20, rotary=4, shifted=True, bias=True, prefix=True
        ),
        random_case(8, B=1, M=2, H=2, G=2, K=64, T=150, T_max=160, spread=15.0, lengths=[150]),
        random_case(9, B=2, M=3, H=4, G=2, K=12, T=9, T_max=11, row_bias=True),
        random_case(10, B=2, M=2, H=6, G=1, K=24, T=40, T_max=43, window=30, prefix=True, row_bias=True),
        random_case(11, B=2, M=3, H=4, G=2, K=12, T=40, T_max=43, rotary=8, shifted=True, prefix=True, scaled=True),
        random_case(12, B=2, M=2, H=4, G=4, K=16, T=9, T_max=9, bias=True, scaled=True),
        random_case(14, B=2, M=5, H=4, G=4, K=33, T=20, T_max=22, rotary=8, prefix=True),
        random_case(
            13, B=2, M=3, H=4, G=2, K=16, T=20, T_max=21, rotary=8, prefix=True, scaled=True, spread=5.0, softcap=3.0
        ),
    ]


def exact(case: Case, dtype: Any = np.float64) -> dict[str, Array]:
    """Outputs by the definition, calculated in ``dtype``."""
    query, row, cache = (case.inputs[name].astype(dtype) for name in ("query", "row", "cache"))
    ancestry, lengths = case.inputs["ancestry"], case.inputs["lengths"]
    R, G, _, K = cache.shape
    H = query.shape[1] // K
    cache = write(cache, row.reshape(R, G, K), lengths, ancestry.shape[1])
    keys = own_history(cache, ancestry)  # [R, G, T, K]
    rows = keys.swapaxes(1, 2).reshape(R, 1, -1, G * K)
    values = np.broadcast_to(rows, (R, H, *rows.shape[2:]))
    found = {"cache_out": cache}
    scales = None
    if "scale_cache" in case.inputs:
        new, cached = (case.inputs[name].astype(dtype) for name in ("row_scales", "scale_cache"))
        found["scale_cache_out"] = write(cached, new[:, :, None], lengths, ancestry.shape[1])
        scales = own_history(found["scale_cache_out"], ancestry)
    output = attend_history(case, query.reshape(R, H, K), keys, values, scales)
    return {"output": output.reshape(R, H * G * K), **found}
