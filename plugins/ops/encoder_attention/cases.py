"""Cases of EncoderAttention, and its definition in numpy."""

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
    K: int,
    V: int | None = None,
    spread: float = 1.0,
    lengths: list[int] | None = None,
    masked: bool = True,
    biased: bool = False,
) -> Case:
    """Random numbers, with a mask of random positions, or of the first ``lengths`` positions of each sample.

    ``spread`` makes the softmax sharp.
    """
    generator = np.random.default_rng(seed)
    V = K if V is None else V
    inputs: dict[str, Array] = {
        name: generator.standard_normal((B, N, H * width)).astype(np.float32)
        for name, width in (("query", K), ("key", K), ("value", V))
    }
    inputs["query"] *= np.float32(spread)
    if lengths is not None:
        inputs["mask"] = np.arange(N) < np.array(lengths)[:, None]
    elif masked:
        inputs["mask"] = generator.random((B, N)) < 0.7
    if biased:
        inputs["distance_bias"] = generator.standard_normal((H, 2 * N - 1)).astype(np.float32)
    name = f"B{B}-N{N}-H{H}-K{K}-V{V}-spread{spread}{'-masked' * ('mask' in inputs)}{'-biased' * biased}-seed{seed}"
    return Case(name, inputs, {"heads": H, "scale": K**-0.5}, floats=("query", "key", "value"))


def cases() -> list[Case]:
    """Sizes of one, odd widths, more keys than a block has, sample lengths down to 0, and gaps between the positions
    that count."""
    return [
        random_case(0, B=1, N=1, H=1, K=1, masked=False),
        random_case(1, B=2, N=70, H=4, K=64, masked=False),
        random_case(2, B=3, N=33, H=6, K=10),
        random_case(3, B=1, N=129, H=2, K=80, spread=20.0, biased=True),
        random_case(4, B=4, N=50, H=3, K=18, lengths=[50, 1, 0, 31], biased=True),
        random_case(5, B=1, N=1100, H=1, K=32, masked=False, biased=True),
        random_case(6, B=2, N=700, H=2, K=7, lengths=[700, 513], spread=5.0),
        random_case(7, B=1, N=300, H=3, K=150, V=37),
        random_case(8, B=40, N=5, H=1, K=128),
        random_case(9, B=2, N=20, H=2, K=6, biased=True),
    ]


def exact(case: Case, dtype: Any = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``."""
    H = int(case.attributes["heads"])
    B, N, _ = case.inputs["query"].shape
    query, key, value = (
        case.inputs[name].astype(dtype).reshape(B, N, H, -1).swapaxes(1, 2) for name in ("query", "key", "value")
    )
    mask = case.inputs.get("mask", np.ones((B, N), np.bool_))
    scores = dtype(case.attributes["scale"]) * (query @ key.swapaxes(2, 3))
    if "distance_bias" in case.inputs:
        positions = np.arange(N)
        distances = positions - positions[:, None]
        scores = scores + case.inputs["distance_bias"].astype(dtype)[:, distances + N - 1]
    weights, _ = softmax_with_lse(np.where(mask[:, None, None], scores, dtype(-np.inf)))
    output = (weights @ value).swapaxes(1, 2).reshape(B, N, -1)
    return {"output": np.where(mask[..., None], output, dtype(0))}
