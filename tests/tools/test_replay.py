"""A replay answers every request once in both ways, and its clock counts nothing but work and skipped time."""

from __future__ import annotations

from typing import Any

import pytest

from support.bundles import BundleCache
from tightbeam.deploy import Runner
from tools.bench.arrivals import ClosedLoopArrivals, PoissonArrivals, trace
from tools.bench.replay import Clock, Joining, Replay, check, in_batches


def asked(count: int) -> dict[str, Any]:
    return {"num_beams": 2, "max_new_tokens": count, "min_new_tokens": count}


@pytest.mark.parametrize("rate", [0.0, 50.0])
@pytest.mark.parametrize("joins", [False, True])
def test_all_requests_are_answered(bundles: BundleCache, rate: float, joins: bool) -> None:
    runner = Runner.load(bundles("dedup"), threads=1)
    drawn = trace(2, 90, longest=32, new_tokens=(2, 9))
    replay = Replay(PoissonArrivals(drawn, rate, 2) if rate else ClosedLoopArrivals(drawn, 6), 20)
    if joins:
        joining = Joining(runner, replay, 8, asked)
        joining.run()
        assert joining.most_steps == 0, "expected every request to be encoded as soon as there is room"
    else:
        in_batches(runner, replay, 4, asked)
    assert len(replay.answered) >= 20 and replay.answered.keys() <= replay.came.keys()
    assert all(replay.answered[number] > replay.came[number] for number in replay.answered)
    figures = replay.figures(6)
    assert 0 < figures["p50 s"] <= figures["p95 s"] and figures["requests/s"] > 0


def test_check_finds_other_tokens(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner.load(bundles("dedup"), threads=1)
    drawn = trace(2, 90, longest=32, new_tokens=(4, 9))
    requests = [next(drawn) for _ in range(3)]
    check(runner, requests, asked)
    generate = runner.generate
    monkeypatch.setattr(
        runner,
        "generate",
        lambda rows, **given: generate(
            [[9, *rows[0][1:]]], **{**given, "eos_token_id": 3, "min_new_tokens": 0, "max_new_tokens": 2}
        ),
    )
    with pytest.raises(SystemExit, match="request 0 gets other tokens beside others than alone"):
        check(runner, requests, asked)


def test_clock_skips_idle_time() -> None:
    clock = Clock()
    clock.skip_to(100.0)
    assert 100.0 <= clock.now() < 101.0
    clock.skip_to(50.0)
    assert clock.now() >= 100.0
