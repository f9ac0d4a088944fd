"""A call of an operator for tests, and the parts that the operators' definitions in numpy share.

Every operator's ``cases.py`` has three functions:

- ``cases()`` lists odd, large and adversarial calls.
- ``random_case(seed, ...)`` makes a call with random numbers of given sizes, named by the letters of the table.
- ``exact(case, dtype)`` is the definition: it returns the outputs by name, calculated in ``dtype``. Their shapes are in
  the table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Case", "finished_scores", "key_bias", "softcapped", "softmax_with_lse"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One call of an operator.

    Attributes
    ----------
    name
        Its name in the reports of tests.
    inputs
        Arrays by name, in the order of the operator's table, without missing inputs.
    attributes
        Values by name.
    floats
        Names of the inputs in the operator's float type, so that a test can cast them.
    """

    name: str
    inputs: dict[str, Array]
    attributes: dict[str, float | int] = field(default_factory=dict)
    floats: tuple[str, ...] = ()


def softcapped(scores: Array, case: Case) -> Array:
    """Scaled scores, capped if the case has a cap."""
    softcap = scores.dtype.type(case.attributes.get("softcap", 0.0))
    return np.asarray(softcap * np.tanh(scores / softcap)) if softcap else scores


def finished_scores(scores: Array, case: Case) -> Array:
    """Scaled scores [.., G, Q, N] of H = G Q heads, capped and with the biases by position, if the case has them."""
    scores = softcapped(scores, case)
    if "key_bias" not in case.inputs:
        return scores
    G, Q, N = scores.shape[-3:]
    return np.asarray(scores + case.inputs["key_bias"].astype(scores.dtype)[:, :N].reshape(G, Q, N))


def key_bias(generator: np.random.Generator, H: int, N: int) -> dict[str, Array]:
    """The input key_bias [H, N + 3]: a slope for each head (ALiBi), and noise. 3 positions are beyond the source."""
    slopes = np.arange(N + 3) * np.exp2(-np.arange(1, H + 1))[:, None]
    return {"key_bias": (slopes + generator.standard_normal((H, N + 3))).astype(np.float32)}


def softmax_with_lse(scores: Array) -> tuple[Array, Array]:
    """The softmax over the last axis, and the log-sum-exp of each row. A row of -inf gives zeros and -inf."""
    row_max = scores.max(axis=-1, keepdims=True)
    row_max = np.where(np.isfinite(row_max), row_max, scores.dtype.type(0))
    weights = np.exp(scores - row_max)
    row_sum = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(row_sum) + row_max)[..., 0]
    return weights / np.where(row_sum == 0, scores.dtype.type(1), row_sum), lse
