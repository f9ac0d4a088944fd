"""Searches that transformers 5 has no more, through a bundle: equal to transformers 4.56.2 on the demo model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.demo import demo_bundle
from support.commands import caller
from support.runtimes.session_in_memory import in_memory
from support.searches.hashed_step import cases_of
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.scheduling.events import NullEvents
from tightbeam.deploy.scheduling.scheduler import FinishedSample
from tightbeam.deploy.tries.build import build_trie

CASES = [*cases_of("groups-demo"), *cases_of("words-demo")]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_bundle(tmp_path_factory.mktemp("demo") / "bundle")


@pytest.fixture(scope="module", params=["cpu", "plain memory"])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def runner(device: str, bundle: Path) -> Iterator[Runner]:
    made = None if device == "cpu" else in_memory(bundle)
    yield Runner.load(bundle, threads=1) if made is None else made.runner


@pytest.mark.parametrize("index", range(len(CASES)))
def test_equal_to_the_last_release(runner: Runner, index: int) -> None:
    case = CASES[index]
    found = runner.generate(case["rows"], **case["settings"])
    assert found.sequences.tolist() == case["sequences"]
    assert found.scores is not None
    np.testing.assert_allclose(found.scores, case["scores"], rtol=1e-5, atol=1e-5)


def test_groups_over_a_trie_with_a_beginning(bundle: Path) -> None:
    runner = Runner.load(bundle, threads=1)
    for case in cases_of("group-tries-demo"):
        given = {"decoder_input_ids": [case["begun"]] * len(case["rows"]), "trie": build_trie(case["entries"])}
        found = runner.generate(case["rows"], **given, **case["settings"])
        assert found.sequences.tolist() == case["sequences"] and found.scores is not None
        np.testing.assert_allclose(found.scores, case["scores"], rtol=1e-5, atol=1e-5)


def test_scheduled_samples_join_batches_of_their_groups(runner: Runner) -> None:
    """Samples of several groups, and of none, at different lengths: each gets what it gets alone."""
    draw = np.random.default_rng(0)
    kinds = [CASES[index]["settings"] for index in (1, 3, 5)]
    asked = [
        (draw.integers(4, 900, draw.integers(2, 12)).tolist(), {**kinds[index % 3], "max_new_tokens": 4 + index})
        for index in range(9)
    ]
    scheduler, found = runner.scheduler(12, NullEvents()), {}
    for number, (row, settings) in enumerate(asked):
        scheduler.add(runner.sample(number, row, settings))
    while scheduler.active:
        for ended in scheduler.turn():
            assert isinstance(ended, FinishedSample), ended
            found[ended.number] = ended.result.sequences.tolist()
    assert [found[number] for number in range(9)] == [
        runner.generate([row], **settings).sequences.tolist() for row, settings in asked
    ]


def test_lines_with_settings_of_their_own(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines of different groups, and of none, each as alone."""
    runner = Runner.load(bundle, threads=1)
    asked: list[tuple[list[int], dict[str, Any]]] = [(row, case["settings"]) for case in CASES for row in case["rows"]]
    asked += [(row, {"num_beams": 4}) for row in CASES[0]["rows"]]
    lines = "".join(json.dumps({"ids": row, **settings}) + "\n" for row, settings in asked)
    command = caller(monkeypatch, capsys)
    done = command(bundle, "--json", "--ids", "--json-input", "ids", "--max-rows=18", stdin=lines.encode()).succeeded()
    for line, (row, settings) in zip(map(json.loads, done.out.splitlines()), asked, strict=True):
        alone = runner.generate([row], **settings).sequences.tolist()
        ended = [own[: own.index(2, 1) + 1] if 2 in own[1:] else own for own in alone]
        assert line.get("sequences", [line["tokens"]]) == ended


def test_options_of_the_command(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[0]
    options = ("--num-beams=4", "--num-beam-groups=4", "--diversity-penalty=1", "--max-new-tokens=12")
    lines = "".join(f"{row}\n" for row in case["rows"])
    done = caller(monkeypatch, capsys)(bundle, "--json", "--ids", *options, stdin=lines.encode()).succeeded()
    found = [json.loads(line)["tokens"] for line in done.out.splitlines()]
    assert found == [row[: len(own)] for row, own in zip(case["sequences"], found, strict=True)]


def test_a_decoder_of_an_older_release_refuses_groups() -> None:
    old = Runner.load(Path(__file__).resolve().parents[2] / "data" / "bundle-format-2", threads=1)
    with pytest.raises(GenerationError, match=r"num_beam_groups=2 cannot be used: .*; export the model again"):
        old.generate([[5, 6]], num_beams=2, num_beam_groups=2, diversity_penalty=1.0)
