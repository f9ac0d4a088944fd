"""Word error rate, perplexity, and how far distributions are apart."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from tightbeam.deploy.arrays import Array

__all__ = ["distance", "divergence", "perplexity", "word_error_rate"]


def word_error_rate(found: Sequence[str], expected: Sequence[str]) -> float:
    """Return the words to insert, delete or replace in all texts, over the words that are expected.

    Case and punctuation do not count.
    """
    pairs = [(_words(text), _words(wanted)) for text, wanted in zip(found, expected, strict=True)]
    return sum(_distance(*pair) for pair in pairs) / max(1, sum(len(wanted) for _, wanted in pairs))


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower())


def _distance(found: Sequence[str], expected: Sequence[str]) -> int:
    """The Levenshtein distance of two sequences of words."""
    row = list(range(len(expected) + 1))
    for count, word in enumerate(found, 1):
        before, row[0] = row[0], count
        for place, wanted in enumerate(expected, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != wanted))
    return row[-1]


def perplexity(log_probabilities: Sequence[Array]) -> float:
    """Return the perplexity of tokens with these natural log-probabilities, floats [T] of each text."""
    return math.exp(-float(np.concatenate(log_probabilities).mean()))


def divergence(exact: Sequence[Array], other: Sequence[Array]) -> float:
    """Return the mean of KL(exact || other) over all places, in nats.

    Parameters
    ----------
    exact, other
        Log-probabilities of all tokens at the places of each text, floats [T, vocabulary].
    """
    total = 0.0
    for wanted, found in zip(exact, other, strict=True):
        likely = np.isfinite(wanted)
        wanted, found = (each[likely].astype(np.float64) for each in (wanted, found))
        total += float((np.exp(wanted) * (wanted - found)).sum())
    return max(0.0, total / sum(map(len, exact)))  # rounding may bring it below


def distance(exact: Sequence[Array], other: Sequence[Array]) -> float:
    """Return the root mean square of the difference of log-probabilities, over the deviation of the exact ones.

    The arguments are those of :func:`divergence`.
    """
    wanted, found = (np.concatenate(list(parts)).astype(np.float64) for parts in (exact, other))
    finite = np.isfinite(wanted)
    return float(np.sqrt(np.mean(np.square((wanted - found)[finite]))) / wanted[finite].std())
