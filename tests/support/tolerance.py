"""Tolerances of all tests: the distance that a float32 result may have from the truth.

At most twice as far as a naive version of the same computation in the same precision; and a few units in the last place
where the naive version happens to be exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

TIMES = 2
UNITS = 4
LUCK = 5


def error(found: Any, exact: Any) -> float:
    """Root mean square of the difference; the largest one is a matter of luck."""
    difference = np.asarray(found, dtype=np.float64) - np.asarray(exact, dtype=np.float64)
    return float(np.sqrt(np.mean(difference**2)))


def allowed(exact: Any, naive: Any, dtype: Any = np.float32) -> float:
    """The error that a result may have. ``exact``: float64. ``naive``: what the obvious code in ``dtype`` gives."""
    scale = max(1.0, float(np.abs(exact).max()))
    return max(TIMES * error(naive, exact), UNITS * float(np.finfo(dtype).eps) * scale)


def assert_close(found: Any, exact: Any, naive: Any, luck: float = 1, extra: float = 0.0) -> None:
    """Assert that one result of many numbers is within the bound, and ``extra`` that a kernel may round.

    The ratio of two errors of few numbers is a matter of luck: pass ``luck=LUCK``.
    """
    assert np.shape(found) == np.shape(exact)
    bound = luck * (allowed(exact, naive) + extra)
    assert error(found, exact) <= bound, f"{error(found, exact):.3g} > {bound:.3g}"


def assert_runs_close(runs: Sequence[tuple[Any, Any, Any]]) -> None:
    """Assert that many results (found, exact, naive) of few numbers each are within the bound.

    One ratio of two errors is a matter of luck, so the median is within it, and each within ``LUCK`` times it.
    """
    ratios = [error(found, exact) / allowed(exact, naive) for found, exact, naive in runs]
    assert np.median(ratios) <= 1, f"error over allowed error: {ratios}"
    assert max(ratios) <= LUCK, f"error over allowed error: {ratios}"
