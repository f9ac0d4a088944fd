"""The one place that says how far a float32 result may be from the truth.

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


def assert_close(found: Any, exact: Any, naive: Any, luck: float = 1) -> None:
    """One result of many numbers. Of few, where the ratio of two errors is a matter of luck: ``luck=LUCK``."""
    assert np.shape(found) == np.shape(exact)
    room = luck * allowed(exact, naive)
    assert error(found, exact) <= room, f"{error(found, exact):.3g} > {room:.3g}"


def assert_runs_close(runs: Sequence[tuple[Any, Any, Any]]) -> None:
    """Many results (found, exact, naive) of a few numbers each, where one ratio of two errors is a matter of luck: the
    median keeps the bound, and no single one is beyond it by more than ``LUCK``."""
    ratios = [error(found, exact) / allowed(exact, naive) for found, exact, naive in runs]
    assert np.median(ratios) <= 1, f"error over allowed error: {ratios}"
    assert max(ratios) <= LUCK, f"error over allowed error: {ratios}"
