"""Cases of QuantizedMatMul, and its definition in numpy."""

from __future__ import annotations

import math

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.quantized_matmul import GROUP
from tightbeam.plugins.ops.quantized_matmul.layout import tiled, untiled

__all__ = ["cases", "exact", "finished", "random_case"]


def random_case(
    seed: int,
    *,
    R: int,
    groups: int,
    Y: int,
    blocks: int = 1,
    activation: int = 0,
    added: bool = False,
    extreme: bool = False,
) -> Case:
    """Random integers and scales. With ``extreme``, all integers are -127 or 127."""
    generator = np.random.default_rng(seed)

    def integers(*shape: int) -> Array:
        if extreme:
            return (generator.integers(0, 2, shape) * 254 - 127).astype(np.int8)
        return generator.integers(-127, 128, shape).astype(np.int8)

    def scales(*shape: int) -> Array:
        return (generator.uniform(0.5, 2, shape) / (127 * math.sqrt(GROUP * groups))).astype(np.float32)

    inputs: dict[str, Array] = {
        "rows": integers(R, GROUP * groups),
        "row_scale": scales(R, blocks),
        "weights": tiled(integers(GROUP * groups, Y)),
        "scale": (127 * scales(blocks, Y)).astype(np.float32),
        "bias": generator.standard_normal(Y).astype(np.float32),
        "addend": generator.standard_normal((R, Y) if added else (1, 1)).astype(np.float32),
    }
    name = f"R{R}-X{GROUP * groups}-Y{Y}-blocks{blocks}-activation{activation}{'-added' * added}-seed{seed}"
    return Case(name, inputs, {"activation": activation}, floats=("addend",))


def cases() -> list[Case]:
    """Sizes of one, odd sizes, all heights of a tile of rows, several tiles of columns and blocks of many rows, K in
    parts, whole blocks of 64 of K, which AMX takes, the largest possible sums, and GELU far from 0."""
    far = random_case(12, R=3, groups=7, Y=64, activation=2)
    far.inputs["bias"] = np.linspace(-9, 9, 64, dtype=np.float32)
    far.inputs["bias"][::9] = 1e30, -1e30, 1e3, -1e3, np.inf, -5.8, 5.8, 0
    poisoned = random_case(9, R=3, groups=4, Y=40)
    poisoned.inputs["row_scale"][1] = np.nan
    return [
        random_case(0, R=1, groups=1, Y=1),
        *(random_case(1, R=R, groups=5, Y=33) for R in range(1, 14)),
        random_case(2, R=7, groups=12, Y=100, blocks=3, added=True),
        random_case(3, R=101, groups=9, Y=70, added=True, activation=1),
        random_case(4, R=200, groups=16, Y=31, blocks=4),
        random_case(5, R=2, groups=7, Y=65, activation=2, added=True),
        random_case(10, R=3, groups=7, Y=65, activation=3, added=True),
        random_case(11, R=14, groups=6, Y=37, activation=4),
        random_case(6, R=5, groups=3000, Y=34, extreme=True),
        random_case(7, R=1, groups=4, Y=700, activation=1),
        random_case(8, R=900, groups=3, Y=5),
        random_case(10, R=14, groups=240, Y=33, blocks=2),
        random_case(11, R=200, groups=2816, Y=36, activation=2, added=True),
        *(random_case(13, R=R, groups=32, Y=49) for R in (16, 17, 31, 32, 33, 48, 101)),
        random_case(14, R=20, groups=48, Y=33, blocks=3, added=True),
        random_case(15, R=40, groups=272, Y=70),
        random_case(17, R=50, groups=320, Y=40, blocks=2),
        random_case(18, R=900, groups=16, Y=36),
        random_case(16, R=17, groups=3008, Y=34, extreme=True),
        poisoned,
        far,
    ]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``. The sums of integers are exact."""
    inputs = case.inputs
    scale: Array = inputs["scale"].astype(dtype)
    row_scale: Array = inputs["row_scale"].astype(dtype)
    blocks, Y = scale.shape
    rows = np.split(inputs["rows"].astype(np.int64), blocks, axis=1)
    weights = np.split(untiled(inputs["weights"], Y), blocks, axis=0)
    products: Array = np.zeros((len(row_scale), Y), dtype)
    for block in range(blocks):
        integers = (rows[block] @ weights[block]).astype(dtype)
        products += integers * row_scale[:, block, None] * scale[block]
    return finished(products + inputs["bias"].astype(dtype), case, dtype)


def finished(products: Array, case: Case, dtype: type) -> dict[str, Array]:
    """The end of a product in ``dtype``: the activation, then the addend."""
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
    return {"products": products + case.inputs["addend"].astype(dtype)}
