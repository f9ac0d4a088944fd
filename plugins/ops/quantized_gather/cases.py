"""Cases of QuantizedGather, and its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.quantized_matmul.layout import tiled, untiled

__all__ = ["cases", "exact", "random_case"]


def random_case(seed: int, *, R: int, groups: int, vocabulary: int, blocks: int = 1, tokens: Any = None) -> Case:
    """Random integers and scales, and random tokens unless given."""
    generator = np.random.default_rng(seed)
    chosen = generator.integers(0, vocabulary, R) if tokens is None else np.asarray(tokens)
    inputs: dict[str, Array] = {
        "tokens": chosen.astype(np.int64),
        "weights": tiled(generator.integers(-127, 128, (4 * groups, vocabulary)).astype(np.int8)),
        "scale": generator.uniform(0.001, 0.01, (blocks, vocabulary)).astype(np.float32),
    }
    return Case(f"R{R}-X{4 * groups}-voc{vocabulary}-blocks{blocks}-seed{seed}", inputs)


def cases() -> list[Case]:
    """Sizes of one, the first and the last token, and more tokens than one thread's item has."""
    return [
        random_case(0, R=1, groups=1, vocabulary=1),
        random_case(1, R=4, groups=6, vocabulary=70, blocks=3, tokens=[0, 31, 32, 69]),
        random_case(2, R=700, groups=17, vocabulary=257),
    ]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``."""
    tokens = case.inputs["tokens"]
    scale: Array = case.inputs["scale"].astype(dtype)
    weights = untiled(case.inputs["weights"], scale.shape[1])  # [4 groups, vocabulary]
    scales = np.repeat(scale, len(weights) // len(scale), axis=0)
    return {"embeddings": (weights.astype(dtype) * scales)[:, tokens].T}
