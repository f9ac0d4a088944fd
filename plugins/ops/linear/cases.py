"""Cases of Linear, and its definition in numpy."""

from __future__ import annotations

import math

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.linear.layout import tiled, untiled
from tightbeam.plugins.ops.quantized_matmul import TILE_COLUMNS

__all__ = ["cases", "exact", "random_case"]


def random_case(
    seed: int, *, R: int, X: int, Y: int, activation: int = 0, added: bool = False, padding: float = 0.0
) -> Case:
    """Random numbers; ``padding`` stands where the last tile has no column."""
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
    name = f"R{R}-X{X}-Y{Y}-activation{activation}{'-added' * added}-seed{seed}"
    return Case(name, inputs, {"activation": activation})


def cases() -> list[Case]:
    """One of everything, odd sizes, all heights of a tile of rows, several blocks of many rows, X in parts, columns
    that are no whole tiles, and GELU far from 0."""
    far = random_case(12, R=3, X=28, Y=64, activation=2)
    far.inputs["bias"] = np.linspace(-9, 9, 64, dtype=np.float32)
    far.inputs["bias"][::9] = 1e30, -1e30, 1e3, -1e3, np.inf, -5.8, 5.8, 0
    poisoned = random_case(9, R=3, X=16, Y=40)
    poisoned.inputs["rows"][1, 3] = np.nan
    return [
        random_case(0, R=1, X=1, Y=1),
        *(random_case(1, R=R, X=21, Y=97, padding=math.nan) for R in range(1, 15)),
        random_case(2, R=7, X=48, Y=100, added=True),
        random_case(3, R=101, X=37, Y=70, added=True, activation=1),
        random_case(4, R=200, X=64, Y=31),
        random_case(5, R=2, X=28, Y=65, activation=2, added=True),
        random_case(10, R=3, X=29, Y=65, activation=3, added=True),
        random_case(11, R=14, X=24, Y=37, activation=4),
        random_case(6, R=5, X=3001, Y=34),
        random_case(7, R=1, X=700, Y=2000, activation=1),
        random_case(8, R=900, X=12, Y=5),
        random_case(13, R=96, X=520, Y=50),
        random_case(14, R=97, X=5000, Y=36, activation=2, added=True),
        poisoned,
        far,
    ]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``."""
    inputs = case.inputs
    Y = len(inputs["bias"])
    weights: Array = untiled(inputs["weights"], Y).astype(dtype)
    products: Array = inputs["rows"].astype(dtype) @ weights + inputs["bias"].astype(dtype)
    if case.attributes["activation"] == 1:
        products = np.maximum(products, dtype(0))
    elif case.attributes["activation"] == 2:
        erf = np.vectorize(math.erf, otypes=[dtype])
        products = dtype(0.5) * products * (dtype(1) + erf(products / dtype(math.sqrt(2))))
    elif case.attributes["activation"] == 3:
        products = dtype(0.5) * products * (dtype(1) + np.tanh(dtype(0.5) * products))
    elif case.attributes["activation"] == 4:
        inner = products + dtype(0.044715) * products**3
        products = dtype(0.5) * products * (dtype(1) + np.tanh(dtype(math.sqrt(2 / math.pi)) * inner))
    return {"products": products + inputs["addend"].astype(dtype)}
