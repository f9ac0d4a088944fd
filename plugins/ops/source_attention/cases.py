"""Cases of SourceAttention, and its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case, finished_scores, key_bias, softmax_with_lse

__all__ = ["cases", "exact", "random_case"]


def random_case(
    seed: int,
    *,
    B: int,
    M: int,
    H: int,
    G: int,
    K: int,
    V: int,
    N: int,
    spread: float = 1.0,
    masked: bool = True,
    biased: bool = False,
    **attributes: float,
) -> Case:
    """Random numbers and mask; position 0 of a sample always counts. ``spread`` makes the softmax sharp."""
    generator = np.random.default_rng(seed)

    def numbers(*shape: int) -> Array:
        return generator.standard_normal(shape).astype(np.float32)

    mask = generator.random((B, N)) < 0.7 if masked else np.ones((B, N), dtype=np.bool_)
    mask[:, 0] = True
    inputs: dict[str, Array] = {
        "query": numbers(B * M, H * K) * np.float32(spread),
        "key": numbers(B, G, N, K),
        "value": numbers(B, G, N, V),
        "mask": mask,
        **(key_bias(generator, H, N) if biased else {}),
    }
    flags = ["biased"] * biased + [f"{key}{value}" for key, value in attributes.items()]
    name = "-".join([f"B{B}-M{M}-H{H}-G{G}-K{K}-V{V}-N{N}-spread{spread}", *flags, f"seed{seed}"])
    return Case(name, inputs, {"scale": K**-0.5, **attributes}, floats=("query", "key", "value"))


def cases() -> list[Case]:
    """Odd and adversarial cases."""
    return [
        random_case(0, B=1, M=1, H=1, G=1, K=1, V=1, N=1),
        random_case(1, B=2, M=4, H=4, G=4, K=64, V=64, N=70),
        random_case(2, B=3, M=2, H=6, G=2, K=6, V=10, N=33),
        random_case(3, B=1, M=5, H=8, G=1, K=32, V=32, N=129),
        random_case(4, B=2, M=3, H=2, G=2, K=96, V=40, N=17, spread=20.0),
        random_case(5, B=1, M=4, H=16, G=16, K=64, V=64, N=512, masked=False),
        random_case(6, B=2, M=1, H=3, G=3, K=8, V=8, N=1),
        random_case(7, B=2, M=3, H=6, G=2, K=16, V=24, N=40, spread=5.0, softcap=3.0),
        random_case(8, B=3, M=2, H=6, G=3, K=64, V=64, N=33, biased=True),
        random_case(9, B=1, M=5, H=3, G=1, K=20, V=7, N=70, spread=9.0, biased=True, softcap=2.0),
    ]


def exact(case: Case, dtype: Any = np.float64) -> dict[str, Array]:
    """Outputs by the definition, calculated in ``dtype``."""
    query, key, value = (case.inputs[name].astype(dtype) for name in ("query", "key", "value"))
    B, G, _, K = key.shape
    R, H = query.shape[0], query.shape[1] // K
    grouped = query.reshape(B, R // B, G, H // G, K)
    scores = finished_scores(dtype(case.attributes["scale"]) * np.einsum("bmgqk,bgnk->bmgqn", grouped, key), case)
    mask = case.inputs["mask"][:, None, None, None, :]
    weights, lse = softmax_with_lse(np.where(mask, scores, dtype(-np.inf)))
    output = np.einsum("bmgqn,bgnv->bmgqv", weights, value)
    return {"output": output.reshape(R, -1), "lse": lse.reshape(R, H)}
