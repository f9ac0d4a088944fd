"""Counts of draws next to their probabilities."""

from __future__ import annotations

import numpy as np

__all__ = ["MOST", "chi_square"]

MOST = 5.0
"""Standard deviations that are accepted: one in three million right distributions has more."""
FEWEST = 5.0
"""Expected draws below which outcomes are counted together."""


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Pearson's statistic as standard deviations of a normal distribution (Wilson and Hilferty 1931); infinite for an
    outcome that cannot be drawn, and 0 if the outcome is certain."""
    kept = probabilities > 0
    if counts[~kept].any():
        return float("inf")
    expected, counts = counts.sum() * probabilities[kept], counts[kept]
    rare = expected < FEWEST
    if rare.any():
        expected = np.append(expected[~rare], expected[rare].sum())
        counts = np.append(counts[~rare], counts[rare].sum())
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    if freedom == 0:
        return 0.0
    spread = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / np.sqrt(spread))
