"""Cases of NormalizeRows, and its definition in numpy."""

from __future__ import annotations

import numpy as np

from tightbeam.plugins.ops._case import Array, Case

__all__ = ["cases", "exact", "random_case"]


def random_case(seed: int, *, R: int, X: int, centred: int = 1, offset: float = 0.0, spread: float = 0.0) -> Case:
    """Random rows around ``offset``, whose magnitudes differ by up to 10 to the power of ``spread``."""
    generator = np.random.default_rng(seed)
    rows = offset + generator.standard_normal((R, X)) * 10 ** (spread * generator.uniform(-1, 1, (R, 1)))
    inputs = {
        "rows": rows.astype(np.float32),
        "weight": generator.uniform(0.5, 2, X).astype(np.float32),
        "bias": generator.standard_normal(X).astype(np.float32),
    }
    name = f"R{R}-X{X}-centred{centred}-offset{offset:g}-seed{seed}"
    return Case(name, inputs, {"epsilon": 1e-5, "centred": centred}, floats=("rows",))


def cases() -> list[Case]:
    """One number, odd widths, many rows, and rows far from zero, of different magnitudes, of equal numbers, and with
    NaN."""
    odd = random_case(6, R=5, X=37)
    odd.inputs["rows"][1], odd.inputs["rows"][2], odd.inputs["rows"][3, 5] = 0, 3, np.nan
    return [
        random_case(0, R=1, X=1),
        random_case(1, R=3, X=7, centred=0),
        random_case(2, R=40, X=1031, spread=3.0),
        random_case(3, R=70, X=1024, centred=0, spread=3.0),
        random_case(4, R=4, X=512, offset=20.0),
        random_case(5, R=300, X=130),
        odd,
    ]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``."""
    rows: Array = case.inputs["rows"].astype(dtype)
    if case.attributes["centred"]:
        rows = rows - rows.mean(axis=1, keepdims=True)
    variance = (rows * rows).mean(axis=1, keepdims=True) + dtype(case.attributes["epsilon"])
    weight: Array = case.inputs["weight"].astype(dtype)
    bias: Array = case.inputs["bias"].astype(dtype)
    return {"normalized": rows / np.sqrt(variance) * weight + bias}
