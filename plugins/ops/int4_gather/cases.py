"""Cases of Int4Gather, and its definition in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.int4_matmul import BLOCK
from tightbeam.plugins.ops.int4_matmul.cases import random_matrix
from tightbeam.plugins.ops.int4_matmul.layout import untiled, untiled_scales

__all__ = ["cases", "exact", "random_case"]


def random_case(seed: int, *, R: int, blocks: int, vocabulary: int, tokens: Sequence[int] | None = None) -> Case:
    """Random weights and tokens, or the given ones."""
    generator = np.random.default_rng(seed)
    chosen = generator.integers(0, vocabulary, R) if tokens is None else np.asarray(tokens)
    inputs = {"tokens": chosen.astype(np.int64), **random_matrix(generator, blocks, vocabulary)}
    return Case(f"R{R}-X{BLOCK * blocks}-voc{vocabulary}-seed{seed}", inputs)


def cases() -> list[Case]:
    """Sizes of one, the first and the last token, and more tokens than one thread's item has."""
    return [
        random_case(0, R=1, blocks=1, vocabulary=1),
        random_case(1, R=4, blocks=3, vocabulary=70, tokens=[0, 31, 32, 69]),
        random_case(2, R=2100, blocks=2, vocabulary=257),
    ]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``."""
    tokens = case.inputs["tokens"]
    scale: Array = case.inputs["scale"].astype(dtype)
    weights: Array = untiled(case.inputs["weights"], len(scale)).astype(dtype)
    blocks: Array = untiled_scales(case.inputs["block_scale"], len(scale)).astype(dtype) * scale
    return {"embeddings": (weights * np.repeat(blocks, BLOCK, axis=0))[:, tokens].T}
