"""Cases of QuantizeRows, and its definition in numpy."""

from __future__ import annotations

import numpy as np

from tightbeam.plugins.ops._case import Array, Case

__all__ = ["cases", "exact", "quantized_rows", "random_case"]


def random_case(seed: int, *, R: int, X: int, spread: float = 1.0) -> Case:
    """Random rows, whose magnitudes differ by up to 10 to the power of ``spread``."""
    generator = np.random.default_rng(seed)
    rows = generator.standard_normal((R, X)) * 10 ** (spread * generator.uniform(-1, 1, (R, 1)))
    return Case(f"R{R}-X{X}-seed{seed}", {"rows": rows.astype(np.float32)}, floats=("rows",))


def cases() -> list[Case]:
    """One number, odd widths, ties, zeros, tiny and huge rows, and rows with NaN or infinite values."""
    ties = np.arange(-127, 128, dtype=np.float32) / 2
    ties[0] = 127
    odd = random_case(3, R=9, X=37).inputs["rows"]
    odd[1], odd[2, 5], odd[3, 0], odd[4, 36], odd[5] = 0, np.nan, np.inf, -np.inf, 1e-41
    odd[6] *= np.float32(1e38) / np.abs(odd[6]).max()
    odd[7] *= np.float32(1e-33) / np.abs(odd[7]).max()
    return [
        random_case(0, R=1, X=1),
        random_case(1, R=3, X=7),
        random_case(2, R=40, X=1031, spread=6.0),
        Case("ties", {"rows": ties[None]}, floats=("rows",)),
        Case("odd-rows", {"rows": odd}, floats=("rows",)),
    ]


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition. Its rounding is part of it, so it is always in float32 and ``dtype`` is not used."""
    quantized, scale = quantized_rows(case.inputs["rows"])
    return {"quantized": quantized, "scale": scale[:, None]}


def quantized_rows(rows: Array) -> tuple[Array, Array]:
    """Rows [..., X] as 8-bit integers [..., X], and the scale of each row's integers, float32 [...]."""
    rows = rows.astype(np.float32)
    finite = np.isfinite(rows).all(axis=-1, keepdims=True)
    safe = np.where(finite, rows, np.float32(0))
    largest = np.maximum(np.abs(safe).max(axis=-1, keepdims=True), np.float32(1e-30))
    quantized = np.rint(safe * (np.float32(127) / largest)).astype(np.int8)
    return quantized, np.where(finite, largest / np.float32(127), np.float32(np.nan))[..., 0]
