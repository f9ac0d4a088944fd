"""Cases of TiledGather, and its definition in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.linear.layout import tiled, untiled
from tightbeam.plugins.ops.quantized_matmul import TILE_COLUMNS

__all__ = ["cases", "exact", "random_case"]


def random_case(seed: int, *, R: int, X: int, vocabulary: int, tokens: Any = None) -> Case:
    """Random numbers, and random tokens unless given."""
    generator = np.random.default_rng(seed)
    chosen = generator.integers(0, vocabulary, R) if tokens is None else np.asarray(tokens)
    inputs: dict[str, Array] = {
        "tokens": chosen.astype(np.int64),
        "weights": tiled(generator.standard_normal((X, vocabulary)).astype(np.float32)),
    }
    return Case(f"R{R}-X{X}-voc{vocabulary}-seed{seed}", inputs)


def cases() -> list[Case]:
    """Sizes of one, the first and the last token, and more tokens than one thread's item has."""
    return [
        random_case(0, R=1, X=1, vocabulary=1),
        random_case(1, R=4, X=23, vocabulary=70, tokens=[0, 31, 32, 69]),
        random_case(2, R=700, X=68, vocabulary=257),
    ]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``."""
    weights = case.inputs["weights"]
    return {"embeddings": untiled(weights, len(weights) * TILE_COLUMNS).astype(dtype)[:, case.inputs["tokens"]].T}
