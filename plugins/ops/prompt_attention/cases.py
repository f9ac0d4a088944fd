"""Cases of PromptAttention, and its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case, softmax_with_lse

__all__ = ["cases", "exact", "random_case"]


def random_case(
    seed: int,
    *,
    B: int,
    N: int,
    H: int,
    G: int,
    K: int,
    V: int | None = None,
    spread: float = 1.0,
    starts: list[int] | None = None,
    spare: int = 0,
    window: int = 0,
    softcap: float = 0.0,
    biased: bool = False,
) -> Case:
    """Random numbers. ``starts`` are the positions of the samples' first queries, 0 by default; ``spare`` positions
    are behind the last query.

    ``spread`` makes the softmax sharp.
    """
    generator = np.random.default_rng(seed)
    positions = max(starts or [0]) + N + spare
    shapes = {"query": (B, H, N, K), "key": (B, G, positions, K), "value": (B, G, positions, V or K)}
    inputs: dict[str, Array] = {
        name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    inputs["query"] *= np.float32(spread)
    if starts is not None:
        inputs["starts"] = np.array(starts, np.int64)
    if biased:
        slopes = -(np.float32(0.5) ** np.arange(1, H + 1, dtype=np.float32))
        inputs["key_bias"] = slopes[:, None] * np.arange(positions + 3, dtype=np.float32)[::-1]
    attributes: dict[str, Any] = {"scale": K**-0.5}
    attributes |= {"window": window} if window else {}
    attributes |= {"softcap": softcap} if softcap else {}
    part = "-".join(map(str, starts or []))
    name = f"B{B}-N{N}-H{H}-G{G}-K{K}-V{V or K}-spread{spread}-from{part}-spare{spare}-window{window}-cap{softcap}"
    return Case(f"{name}{'-biased' * biased}-seed{seed}", inputs, attributes, floats=("query", "key", "value"))


def cases() -> list[Case]:
    """Sizes of one, odd widths, shared key heads, more keys than a block has, windows shorter and longer than a block,
    and parts behind positions that are cached."""
    return [
        random_case(0, B=1, N=1, H=1, G=1, K=1),
        random_case(1, B=2, N=70, H=4, G=2, K=64),
        random_case(2, B=3, N=33, H=6, G=1, K=10, V=37),
        random_case(3, B=1, N=129, H=2, G=2, K=80, spread=20.0, biased=True),
        random_case(4, B=3, N=50, H=3, G=3, K=18, starts=[0, 7, 600], spare=5, biased=True),
        random_case(5, B=1, N=1100, H=2, G=1, K=32),
        random_case(6, B=2, N=700, H=2, G=2, K=7, window=513, spread=5.0),
        random_case(7, B=2, N=300, H=3, G=1, K=150, starts=[1030, 20], window=40),
        random_case(8, B=1, N=200, H=4, G=2, K=24, softcap=2.5, spread=4.0, starts=[1000], window=600),
        random_case(9, B=40, N=5, H=1, G=1, K=128, spare=1),
        random_case(10, B=1, N=1, H=8, G=2, K=16, starts=[2000], window=1),
        random_case(11, B=2, N=60, H=2, G=1, K=20, softcap=0.5, biased=True),
    ]


def exact(case: Case, dtype: Any = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``."""
    query, key, value = (case.inputs[name].astype(dtype) for name in ("query", "key", "value"))
    B, H, N, _ = query.shape
    positions = key.shape[2]
    key, value = (np.repeat(part, H // part.shape[1], axis=1) for part in (key, value))
    scores = dtype(case.attributes["scale"]) * (query @ key.swapaxes(2, 3))
    if softcap := case.attributes.get("softcap", 0.0):
        scores = dtype(softcap) * np.tanh(scores / dtype(softcap))
    if "key_bias" in case.inputs:
        scores = scores + case.inputs["key_bias"].astype(dtype)[:, None, :positions]
    starts = case.inputs.get("starts", np.zeros(B, np.int64))
    ages = (starts[:, None, None] + np.arange(N)[:, None]) - np.arange(positions)  # [B, N, positions]
    seen = (ages >= 0) & (ages < (case.attributes.get("window", 0) or positions))
    weights, _ = softmax_with_lse(np.where(seen[:, None], scores, dtype(-np.inf)))
    return {"output": (weights @ value).swapaxes(1, 2).reshape(B, N, -1)}
