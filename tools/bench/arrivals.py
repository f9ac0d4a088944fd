"""Arrivals of requests: a trace that a seed determines, sent by clients in a closed loop or at random times."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np

__all__ = ["Arrivals", "ClosedLoopArrivals", "PoissonArrivals", "Request", "trace"]

MEDIAN_SOURCE, SPREAD = 700, 0.5
"""Tokens of an article of CNN/DailyMail: log-normal."""


@dataclass(frozen=True)
class Request:
    """A request: its number, its source, and the tokens that it is to generate."""

    number: int
    source: list[int]
    new_tokens: int


def trace(seed: int, vocabulary: int, *, longest: int, new_tokens: tuple[int, int]) -> Iterator[Request]:
    """Yield requests without end, the same ones for the same seed.

    Parameters
    ----------
    seed
        Seed of all that is drawn.
    vocabulary
        Tokens of the model.
    longest
        Longest source; the median is that of CNN/DailyMail by the same factor.
    new_tokens
        Least and most tokens to generate; drawn uniformly.
    """
    generator = np.random.default_rng(seed)
    median = MEDIAN_SOURCE * longest / 1024
    for number in count():
        length = int(np.clip(generator.lognormal(math.log(median), SPREAD), 8, longest))
        source = generator.integers(5, vocabulary, length).tolist()
        yield Request(number, source, int(generator.integers(new_tokens[0], new_tokens[1] + 1)))


class Arrivals(Protocol):
    """Times at which requests come, in seconds."""

    def due(self, now: float) -> list[tuple[Request, float]]:
        """Return the requests that have come since the last call, with their times."""
        ...

    @property
    def next_time(self) -> float:
        """Time at which the next request comes."""
        ...

    def answered(self, now: float) -> None:
        """Take note that a request has been answered."""
        ...


class ClosedLoopArrivals:
    """Clients that send the next request when the last one is answered."""

    def __init__(self, requests: Iterator[Request], clients: int) -> None:
        self._requests = requests
        self._times = [0.0] * clients

    def due(self, now: float) -> list[tuple[Request, float]]:
        found = []
        while self._times and self._times[0] <= now:
            at = heapq.heappop(self._times)
            found.append((next(self._requests), at))
        return found

    @property
    def next_time(self) -> float:
        return self._times[0]

    def answered(self, now: float) -> None:
        heapq.heappush(self._times, now)


class PoissonArrivals:
    """Requests that come at random times, so many a second."""

    def __init__(self, requests: Iterator[Request], rate: float, seed: int) -> None:
        self._requests, self._rate = requests, rate
        self._generator = np.random.default_rng(seed)
        self._next = 0.0

    def due(self, now: float) -> list[tuple[Request, float]]:
        found = []
        while self._next <= now:
            found.append((next(self._requests), self._next))
            self._next += self._generator.exponential(1 / self._rate)
        return found

    @property
    def next_time(self) -> float:
        return self._next

    def answered(self, now: float) -> None: ...
