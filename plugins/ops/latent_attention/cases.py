"""Cases of LatentAttention, and its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case, finished_scores, key_bias, softmax_with_lse
from tightbeam.plugins.ops.beam_attention.cases import rotate

__all__ = ["cases", "exact", "random_case"]


def random_case(
    seed: int,
    *,
    B: int,
    M: int,
    H: int,
    G: int,
    K: int,
    N: int,
    spread: float = 1.0,
    masked: bool = True,
    rotary: int = 0,
    scaled: bool = False,
    biased: bool = False,
    **attributes: float,
) -> Case:
    """Random numbers and mask; position 0 of a sample always counts. ``spread`` makes the softmax sharp."""
    generator = np.random.default_rng(seed)
    mask = generator.random((B, N)) < 0.7 if masked else np.ones((B, N), dtype=np.bool_)
    mask[:, 0] = True
    inputs: dict[str, Array] = {
        "query": generator.standard_normal((B * M, H, K)).astype(np.float32) * np.float32(spread),
        "states": generator.standard_normal((B, N, G * K)).astype(np.float32),
        "mask": mask,
    }
    if rotary:
        angles = np.outer(np.arange(N + seed % 3), 10.0 ** -np.arange(rotary // 2))
        inputs["cosines"], inputs["sines"] = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    if scaled:
        inputs["key_scales"] = np.exp(generator.standard_normal((B, G, N))).astype(np.float32)
    inputs |= key_bias(generator, H, N) if biased else {}
    flags = ["biased"] * biased + [f"{key}{value}" for key, value in attributes.items()]
    sizes = f"B{B}-M{M}-H{H}-G{G}-K{K}-N{N}-spread{spread}-rotary{rotary}-scaled{int(scaled)}"
    name = "-".join([sizes, *flags, f"seed{seed}"])
    return Case(name, inputs, {"scale": K**-0.5, **attributes}, floats=("query", "states"))


def cases() -> list[Case]:
    """Odd and adversarial cases: the EL form (G = 1), the K form (G = H) and others, with and without rotation."""
    return [
        random_case(0, B=1, M=1, H=1, G=1, K=1, N=1),
        random_case(1, B=2, M=4, H=4, G=1, K=64, N=70),
        random_case(2, B=2, M=3, H=5, G=1, K=37, N=45),
        random_case(3, B=1, M=4, H=4, G=4, K=16, N=33),
        random_case(4, B=3, M=2, H=6, G=2, K=10, N=19, spread=20.0),
        random_case(5, B=1, M=4, H=16, G=1, K=256, N=130, masked=False),
        random_case(6, B=2, M=1, H=2, G=2, K=8, N=1),
        random_case(7, B=2, M=2, H=4, G=4, K=16, N=70, rotary=16),
        random_case(8, B=3, M=3, H=4, G=2, K=10, N=33, rotary=4),
        random_case(9, B=1, M=2, H=3, G=3, K=64, N=40, rotary=32, spread=5.0),
        random_case(10, B=2, M=3, H=4, G=2, K=12, N=41, rotary=8, scaled=True),
        random_case(11, B=1, M=2, H=4, G=4, K=16, N=20, scaled=True),
        random_case(12, B=2, M=3, H=4, G=2, K=16, N=40, spread=5.0, softcap=3.0),
        random_case(13, B=2, M=2, H=6, G=1, K=48, N=33, biased=True),
        random_case(14, B=1, M=3, H=6, G=2, K=8, N=70, rotary=4, scaled=True, biased=True, softcap=2.0),
        random_case(15, B=2, M=3, H=4, G=2, K=33, N=40, rotary=8),
        random_case(16, B=3, M=2, H=10, G=5, K=9, N=70, rotary=4, scaled=True, biased=True),
        random_case(17, B=9, M=1, H=6, G=3, K=20, N=40, spread=5.0),
    ]


def exact(case: Case, dtype: Any = np.float64) -> dict[str, Array]:
    """Outputs by the definition, calculated in ``dtype``."""
    query, states = case.inputs["query"].astype(dtype), case.inputs["states"].astype(dtype)
    B, N, E = states.shape
    R, H, K = query.shape
    G = E // K
    grouped = query.reshape(B, R // B, G, H // G, K)
    keys = states.reshape(B, N, G, K).swapaxes(1, 2)
    if "cosines" in case.inputs:
        keys = rotate(keys, np.arange(N)[None], case)
    scores = dtype(case.attributes["scale"]) * np.einsum("bmgqk,bgnk->bmgqn", grouped, keys)
    if "key_scales" in case.inputs:
        scores = scores * case.inputs["key_scales"].astype(dtype)[:, None, :, None]
    scores = finished_scores(scores, case)
    mask = case.inputs["mask"][:, None, None, None, :]
    weights, lse = softmax_with_lse(np.where(mask, scores, dtype(-np.inf)))
    output = np.einsum("bmgqn,bne->bmgqe", weights, states)
    return {"output": output.reshape(R, H, E), "lse": lse.reshape(R, H)}
