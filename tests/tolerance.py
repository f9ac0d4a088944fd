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
ENOUGH = 5
UNSURE = 1.25


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
    """Results (found, exact, naive) of a few numbers each, where one ratio of two errors is a matter of luck: where a
    naive run happens to be exact, the median run of them, relative to its numbers, says what it may be. No single one
    is beyond the bound by more than ``LUCK``, and the median of ``ENOUGH`` or more keeps it, but for ``UNSURE``: the
    median of nine such ratios is itself no surer than that, and there are dozens of medians."""
    scales = [max(1.0, float(np.abs(exact).max())) for _, exact, _ in runs]
    typical = np.median([error(naive, exact) / scale for (_, exact, naive), scale in zip(runs, scales, strict=True)])
    ratios = [
        error(found, exact) / max(allowed(exact, naive), TIMES * float(typical) * scale)
        for (found, exact, naive), scale in zip(runs, scales, strict=True)
    ]
    assert max(ratios) <= LUCK, f"error over allowed error: {ratios}"
    assert len(ratios) < ENOUGH or np.median(ratios) <= UNSURE, f"error over allowed error: {ratios}"
