"""The one place that says how far a float32 result may be from the truth.

At most twice as far as a naive version of the same computation in the same precision; and a few units in the last place
where the naive version happens to be exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

UNITS = 4


def error(found: Any, exact: Any) -> float:
    """Root mean square of the difference; the largest one is a matter of luck."""
    difference = np.asarray(found, dtype=np.float64) - np.asarray(exact, dtype=np.float64)
    return float(np.sqrt(np.mean(difference**2)))


def assert_close(found: Any, exact: Any, naive: Any) -> None:
    """``exact``: float64. ``naive``: what the obvious float32 code gives."""
    assert np.shape(found) == np.shape(exact)
    scale = max(1.0, float(np.abs(exact).max()))
    allowed = max(2 * error(naive, exact), UNITS * float(np.finfo(np.float32).eps) * scale)
    assert error(found, exact) <= allowed, f"error {error(found, exact):.3g}, allowed {allowed:.3g}"
