"""Times of several functions, measured in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["in_turn"]


def in_turn(work: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each function, measured in turn so that a slow moment of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for call in work.values():
        call()
    for _ in range(rounds):
        for name, call in work.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}
