"""Cases of Int4MatMul, and its definition in numpy."""

from __future__ import annotations

import math

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.int4_matmul import BLOCK, MOST_SCALE
from tightbeam.plugins.ops.int4_matmul.layout import tiled, tiled_scales, untiled, untiled_scales
from tightbeam.plugins.ops.quantize_rows import cases as quantize_rows
from tightbeam.plugins.ops.quantized_matmul import cases as quantized_matmul
from tightbeam.plugins.ops.split_rows_matmul.cases import rounded_rows

__all__ = ["cases", "exact", "random_case", "random_matrix"]


def random_matrix(generator: np.random.Generator, blocks: int, Y: int) -> dict[str, Array]:
    """Random weights of all 16 values, scales of blocks and scales of columns."""
    return {
        "weights": tiled(generator.integers(-8, 8, (BLOCK * blocks, Y))),
        "block_scale": tiled_scales(generator.integers(1, MOST_SCALE + 1, (blocks, Y)).astype(np.uint8)),
        "scale": (generator.uniform(0.5, 2, Y) / (700 * math.sqrt(BLOCK * blocks))).astype(np.float32),
    }


def random_case(
    seed: int,
    *,
    R: int,
    blocks: int,
    Y: int,
    activation: int = 0,
    added: bool = False,
    spread: float = 0.0,
    extreme: bool = False,
) -> Case:
    """Random rows, whose magnitudes differ by up to 10 to the power of ``spread``, and a random matrix. With
    ``extreme``, all integers and scales are the largest possible."""
    generator = np.random.default_rng(seed)
    inputs: dict[str, Array] = {
        "rows": quantize_rows.random_case(seed, R=R, X=BLOCK * blocks, spread=spread).inputs["rows"],
        **random_matrix(generator, blocks, Y),
        "bias": generator.standard_normal(Y).astype(np.float32),
        "addend": generator.standard_normal((R, Y) if added else (1, 1)).astype(np.float32),
    }
    if extreme:
        inputs["rows"] = np.sign(inputs["rows"][:, :1]) * np.ones_like(inputs["rows"])
        inputs["weights"] = np.zeros_like(inputs["weights"])
        inputs["block_scale"] = np.full_like(inputs["block_scale"], MOST_SCALE)
    name = f"R{R}-X{BLOCK * blocks}-Y{Y}-activation{activation}{'-added' * added}-seed{seed}"
    return Case(name, inputs, {"activation": activation}, floats=("rows", "addend"))


def cases() -> list[Case]:
    """One block and one column, all heights of a tile of rows, several tiles of columns and many rows, K in parts, the
    largest possible sums, a number far larger than the others, and a row with NaN."""
    outlier = random_case(20, R=5, blocks=5, Y=50)
    outlier.inputs["rows"][2, 7] = 5e3
    poisoned = random_case(5, R=3, blocks=2, Y=40)
    poisoned.inputs["rows"][1, 2] = np.nan
    return [
        random_case(0, R=1, blocks=1, Y=1),
        *(random_case(1, R=R, blocks=2, Y=33) for R in range(1, 14)),
        random_case(2, R=7, blocks=3, Y=100, activation=2, added=True, spread=2.0),
        random_case(3, R=101, blocks=4, Y=70, activation=1, added=True),
        random_case(4, R=2, blocks=7, Y=65, activation=3, added=True),
        random_case(5, R=14, blocks=2, Y=37, activation=4),
        random_case(6, R=5, blocks=90, Y=34, extreme=True),
        random_case(7, R=1, blocks=3, Y=700, activation=1),
        random_case(8, R=14, blocks=150, Y=33),
        random_case(9, R=170, blocks=352, Y=36, activation=2, added=True),
        outlier,
        poisoned,
    ]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``. The rounding of the rows is part of it, and the sums of integers are exact."""
    inputs = case.inputs
    scale: Array = inputs["scale"].astype(dtype)
    integers, row_scale = rounded_rows(inputs["rows"], 1)
    weights, block_scale = untiled(inputs["weights"], len(scale)), untiled_scales(inputs["block_scale"], len(scale))
    summed: Array = np.zeros((len(integers), len(scale)), dtype)
    for block, scales in enumerate(block_scale):
        numbers = slice(BLOCK * block, BLOCK * (block + 1))
        sums = integers[:, numbers].astype(np.int64) @ weights[numbers]
        summed += sums.astype(dtype) * scales.astype(dtype)
    products = summed * row_scale.astype(dtype) * scale + inputs["bias"].astype(dtype)
    return quantized_matmul.finished(products, case, dtype)
