"""What every operator's ``cases.py`` gives: inputs with names, attributes, and the result by definition, in numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Case", "softmax_with_lse"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One call of an operator.

    ``inputs``: by the names of the operator's table, in its order; an optional input that is missing is absent.
    ``floats``: the names of the inputs that take the operator's float type, so that a test can cast them.
    """

    name: str
    inputs: dict[str, Array]
    attributes: dict[str, float | int] = field(default_factory=dict)
    floats: tuple[str, ...] = ()


def softmax_with_lse(scores: Array) -> tuple[Array, Array]:
    """Softmax over the last axis, and the log of the sum of exponentials. A row of -inf gives zeros and -inf."""
    highest = scores.max(axis=-1, keepdims=True)
    highest = np.where(np.isfinite(highest), highest, scores.dtype.type(0))
    weights = np.exp(scores - highest)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + highest)[..., 0]
    return weights / np.where(total == 0, scores.dtype.type(1), total), lse
