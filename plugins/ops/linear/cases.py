"""Cases of Linear, and its definition in numpy."""

from __future__ import annotations

import math

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.linear.layout import tiled, untiled
from tightbeam.plugins.ops.quantized_matmul import TILE_COLUMNS

__all__ = ["cases", "exact", "random_case"]


def random_case(seed: int, *, R: int, X: int, Y: int, added: bool = False, padding: float = 0.0) -> Case:
    """Random numbers. ``padding`` fills the places of the last tile that have no column."""
    generator = np.random.default_rng(seed)
    weights = tiled((generator.standard_normal((X, Y)) / math.sqrt(X)).astype(np.float32))
    if Y % TILE_COLUMNS:
        weights[-1, :, Y % TILE_COLUMNS :] = padding
    inputs: dict[str, Array] = {
        "rows": generator.standard_normal((R, X)).astype(np.float32),
        "weights": weights,
        "bias": generator.standard_normal(Y).astype(np.float32),
        "addend": generator.standard_normal((R, Y) if added else (1, 1)).astype(np.float32),
    }
    return Case(f"R{R}-X{X}-Y{Y}{'-added' * added}-seed{seed}", inputs)


def cases() -> list[Case]:
    """Sizes of one, odd sizes, all heights of a tile of rows, several blocks of many rows, X in parts, a last tile with
    padding, NaN and infinity."""
    poisoned = random_case(9, R=3, X=16, Y=40)
    poisoned.inputs["rows"][1, 3] = np.nan
    poisoned.inputs["bias"][5] = np.inf
    return [
        random_case(0, R=1, X=1, Y=1),
        *(random_case(1, R=R, X=21, Y=97, padding=math.nan) for R in range(1, 15)),
        random_case(2, R=7, X=48, Y=100, added=True),
        random_case(3, R=101, X=37, Y=70, added=True),
        random_case(4, R=200, X=64, Y=31),
        random_case(5, R=3, X=29, Y=65, added=True),
        random_case(6, R=5, X=3001, Y=34),
        random_case(7, R=1, X=700, Y=2000),
        random_case(8, R=900, X=12, Y=5),
        random_case(13, R=96, X=520, Y=50),
        random_case(14, R=97, X=5000, Y=36, added=True),
        poisoned,
    ]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``."""
    inputs = case.inputs
    Y = len(inputs["bias"])
    weights: Array = untiled(inputs["weights"], Y).astype(dtype)
    products: Array = inputs["rows"].astype(dtype) @ weights + inputs["bias"].astype(dtype)
    return {"products": products + inputs["addend"].astype(dtype)}
