"""The soak of `make soak`: two minutes of it, and how its clients judge an answer."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from support.serving.served import skip_without_server
from tools.soak.__main__ import growth_of
from tools.soak.clients import Tally, _judged
from tools.soak.requests import Ask, hostile_request

ROOT = Path(__file__).resolve().parents[2]
GOOD = Ask("text", "demo", b"{}", expected=[[[2, 5], [2]], [[3, 4], [7]]])
STREAMED = Ask("stream", "live", b"{}", "generate_stream", [[[2, 5], [2]]])


def answer(ids: list[int], lengths: list[int], shape: list[int]) -> str:
    outputs = [{"name": "OUTPUT_IDS", "data": ids}, {"name": "OUTPUT_LENGTHS", "data": lengths, "shape": shape}]
    return json.dumps({"outputs": outputs})


@pytest.mark.parametrize(
    ("ask", "status", "text", "expected"),
    [
        (GOOD, 200, answer([2, 5, 2, 1, 3, 4, 7, 1], [2, 1, 2, 1], [2, 2]), "answered"),
        (GOOD, 200, answer([2, 6, 2, 1, 3, 4, 7, 1], [2, 1, 2, 1], [2, 2]), "wrong"),
        (STREAMED, 200, 'data: {"OUTPUT_IDS":5}\n\ndata: {"OUTPUT_IDS":[2,5,2,1],"OUTPUT_LENGTHS":[2,1]}', "answered"),
        (STREAMED, 200, 'data: {"OUTPUT_IDS":[2,6,2,1],"OUTPUT_LENGTHS":[2,1]}', "wrong"),
        (GOOD, 503, '{"error":"the worker was killed; send the request again"}', "failed"),
        (GOOD, 400, '{"error":"too long"}', "wrong"),
        (Ask("hostile", "demo", b"{}"), 400, '{"error":"too long"}', "refused"),
        (Ask("hostile", "demo", b"{}"), 400, '{"error":"KeyError; this is a defect of Tightbeam"}', "wrong"),
        (Ask("hostile", "demo", b"{}"), 200, "no JSON", "wrong"),
    ],
)
def test_answers_are_judged(ask: Ask, status: int, text: str, expected: str) -> None:
    tally = Tally()
    tally.add(*_judged(ask, status, text))
    assert tally.counts[expected] == 1
    assert len(tally.bad) == (expected == "wrong")


def test_a_seed_repeats_the_hostile_requests() -> None:
    first, again = ([hostile_request(rng) for _ in range(20)] for rng in (random.Random(3), random.Random(3)))
    assert first == again and len({ask.body for ask in first}) > 10


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_is_wrong(tmp_path: Path) -> None:
    skip_without_server()
    command = [sys.executable, "-m", "tools.soak", "--minutes", "2", "--seed", "11", "--output", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("megabytes", "expected"),
    [
        ([100] * 6, 0.0),
        ([100, 101, 150, 100, 101, 100], 0.0),  # what the last requests left
        ([100, 102, 104, 106, 108, 110], 10 / 105),  # a leak
    ],
)
def test_growth_is_what_all_measurements_show(megabytes: list[int], expected: float) -> None:
    assert growth_of([each * 10**6 for each in megabytes]) == pytest.approx(expected, abs=0.003)
