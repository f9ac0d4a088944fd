"""Arrival traces are the same for the same seed, and clients send the next request when the last one is answered."""

from __future__ import annotations

from itertools import islice

import numpy as np

from tools.bench.arrivals import ClosedLoopArrivals, PoissonArrivals, Request, trace


def drawn(seed: int, count: int = 400) -> list[Request]:
    return list(islice(trace(seed, 1000, longest=1024, new_tokens=(8, 128)), count))


def test_a_seed_determines_the_trace() -> None:
    assert drawn(3) == drawn(3) != drawn(4)
    lengths = [len(request.source) for request in drawn(3)]
    assert 600 < np.median(lengths) < 800 and max(lengths) == 1024
    assert {request.number for request in drawn(3)} == set(range(400))
    assert min(request.new_tokens for request in drawn(3)) == 8
    assert max(request.new_tokens for request in drawn(3)) == 128


def test_closed_loop_has_as_many_open_requests_as_clients() -> None:
    arrivals = ClosedLoopArrivals(iter(drawn(1)), 3)
    assert [(request.number, at) for request, at in arrivals.due(0.0)] == [(0, 0.0), (1, 0.0), (2, 0.0)]
    assert arrivals.due(9.0) == []
    arrivals.answered(5.0)
    arrivals.answered(4.0)
    assert arrivals.next_time == 4.0
    assert [(request.number, at) for request, at in arrivals.due(4.5)] == [(3, 4.0)]
    assert [(request.number, at) for request, at in arrivals.due(9.0)] == [(4, 5.0)]


def test_random_arrivals_have_their_rate() -> None:
    arrivals = PoissonArrivals(iter(drawn(1)), 2.0, 7)
    times = [at for _, at in arrivals.due(100.0)]
    assert 150 < len(times) < 250 and times == sorted(times)
    assert arrivals.next_time > 100.0 and arrivals.due(100.0) == []
    gaps = np.diff(times)
    assert 0.8 < gaps.std() / gaps.mean() < 1.2, "the gaps of a Poisson process are exponential"
