"""Cases of HeadMatMul, and its definition in numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.dynamic_quantize_matmul import cases as dynamic_quantize_matmul

__all__ = ["by_head", "cases", "exact", "random_case"]


def random_case(seed: int, *, R: int, H: int, groups: int, Y: int, blocks: int = 1, spread: float = 0.0) -> Case:
    """Random rows, whose magnitudes differ by up to 10 to the power of ``spread``, and a matrix for each head."""
    heads = [
        dynamic_quantize_matmul.random_case(seed + head, R=R, groups=groups, Y=Y, blocks=blocks, spread=spread).inputs
        for head in range(H)
    ]
    inputs = {
        "rows": np.stack([head["rows"] for head in heads], axis=1),
        "weights": np.stack([head["weights"] for head in heads]),
        "scale": np.stack([head["scale"] for head in heads]),
    }
    return Case(f"R{R}-H{H}-X{4 * groups}-Y{Y}-blocks{blocks}-seed{seed}", inputs, floats=("rows",))


def cases() -> list[Case]:
    """Sizes of one, few and many rows and heads, blocks, and a row with NaN."""
    poisoned = random_case(5, R=3, H=2, groups=4, Y=40, blocks=2)
    poisoned.inputs["rows"][1, 0, 2] = np.nan
    return [
        random_case(0, R=1, H=1, groups=1, Y=1),
        random_case(1, R=4, H=16, groups=16, Y=33, spread=2.0),
        random_case(1, R=33, H=3, groups=16, Y=33, spread=2.0),
        random_case(2, R=33, H=3, groups=12, Y=100, blocks=3),
        random_case(3, R=130, H=2, groups=9, Y=20),
        poisoned,
    ]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``. The rounding of the rows is part of it."""
    return by_head(case, dynamic_quantize_matmul.exact, dtype)


def by_head(case: Case, product: Callable[[Case, type], dict[str, Array]], dtype: type) -> dict[str, Array]:
    """Each head's products, by the definition ``product`` of an operator with one matrix."""
    inputs, products = case.inputs, []
    for head, (weights, scale) in enumerate(zip(inputs["weights"], inputs["scale"], strict=True)):
        own = {
            "rows": np.ascontiguousarray(inputs["rows"][:, head]),
            "weights": weights,
            "scale": scale,
            "bias": np.zeros(scale.shape[1], np.float32),
            "addend": np.zeros((1, 1), np.float32),
        }
        products.append(product(Case("", own, {"activation": 0}), dtype)["products"])
    return {"products": np.stack(products, axis=1)}
