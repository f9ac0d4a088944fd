"""Who listens to a search hears of each sample as soon as it is through, and may let samples go."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from support.bundles import BundleCache
from tightbeam.deploy import Runner, SearchResult

IDS = np.random.default_rng(3).integers(4, 100, (6, 9))
MASK = (np.arange(9) < np.array([9, 4, 7, 2, 9, 5])[:, None]).astype(np.int64)


class Recorder:
    """Writes down what it hears; lets each sample of ``patience`` go after so many steps."""

    def __init__(self, patience: dict[int, int] | None = None) -> None:
        self.patience = patience or {}
        self.ran: list[list[int]] = []
        self.tokens: dict[int, list[int]] = {}
        self.found: dict[int, SearchResult] = {}
        self.steps_before: dict[int, int] = {}

    def on_step(self, samples: np.ndarray, tokens: np.ndarray | None) -> np.ndarray:
        self.ran.append(samples.tolist())
        for sample, token in zip(samples.tolist(), samples if tokens is None else tokens.tolist(), strict=True):
            self.tokens.setdefault(sample, []).append(token)
        return np.array([len(self.ran) >= self.patience.get(sample, 10**9) for sample in samples.tolist()])

    def on_finished(self, sample: int, result: SearchResult) -> None:
        assert sample not in self.found
        self.found[sample] = result
        self.steps_before[sample] = len(self.ran)


@pytest.fixture(scope="module", params=["bart", "gpt2"])
def runner(bundles: BundleCache, request: pytest.FixtureRequest) -> Runner:
    return Runner.load(bundles("dedup", request.param), threads=1)


SETTINGS = [
    {"num_beams": 1},
    {"num_beams": 3, "num_return_sequences": 2},
    {"num_beams": 4, "early_stopping": True, "length_penalty": -1.0},
]


def often_said(runner: Runner) -> list[int]:
    """Three tokens that greedy rows say first at as many different places as there are."""
    asked = {"num_beams": 1, "max_new_tokens": 16, "min_new_tokens": 16, "no_repeat_ngram_size": 2}
    rows = runner.generate(IDS, MASK, **asked).sequences[:, -16:]

    def places(tokens: tuple[int, ...]) -> int:
        found = np.isin(rows, tokens)
        return len(set(np.where(found.any(axis=1), found.argmax(axis=1), 16).tolist()))

    return list(max(itertools.combinations(np.unique(rows).tolist(), 3), key=places))


@pytest.mark.parametrize("settings", SETTINGS)
def test_each_sample_is_told_once_with_its_own_result(runner: Runner, settings: dict[str, Any]) -> None:
    settings = {"max_new_tokens": 16, "min_length": 0, "pad_token_id": 1, "no_repeat_ngram_size": 2, **settings}
    settings["eos_token_id"] = often_said(runner)
    heard = Recorder()
    whole = runner.generate(IDS, MASK, callback=heard, **settings)
    expected = runner.generate(IDS, MASK, **settings)
    np.testing.assert_array_equal(whole.sequences, expected.sequences)
    assert sorted(heard.found) == list(range(6))
    assert len(set(heard.steps_before.values())) > 1, "all ended together, so that early results were not tried"
    count = settings.get("num_return_sequences", 1)
    for sample, result in heard.found.items():
        own = expected.of(sample, count)
        length = result.sequences.shape[1]
        np.testing.assert_array_equal(result.sequences, own.sequences[:, :length])
        assert len(set(own.sequences[:, length:].ravel().tolist())) <= 1  # padding alone is left out
        if own.scores is not None and result.scores is not None:
            np.testing.assert_array_equal(result.scores, own.scores)
        assert all(sample not in ran for ran in heard.ran[heard.steps_before[sample] :])
        if settings["num_beams"] == 1:
            assert heard.tokens[sample] == result.sequences[0, length - len(heard.tokens[sample]) :].tolist()


@pytest.mark.parametrize("settings", SETTINGS)
def test_who_is_let_go_costs_no_step_more_and_changes_nobody(runner: Runner, settings: dict[str, Any]) -> None:
    settings = {"max_new_tokens": 16, "min_new_tokens": 16, **settings}
    expected = Recorder()
    runner.generate(IDS, MASK, callback=expected, **settings)
    heard = Recorder({0: 3, 3: 1, 5: 3})
    runner.generate(IDS, MASK, callback=heard, **settings)
    assert [sorted(ran) for ran in heard.ran] == [[*range(6)], *[[0, 1, 2, 4, 5]] * 2, *[[1, 2, 4]] * 13]
    assert sorted(heard.found) == [1, 2, 4]
    for sample, result in heard.found.items():
        np.testing.assert_array_equal(result.sequences, expected.found[sample].sequences)


@pytest.mark.parametrize("settings", SETTINGS)
def test_nothing_runs_for_nobody(runner: Runner, settings: dict[str, Any]) -> None:
    settings = {"max_new_tokens": 16, "min_new_tokens": 16, **settings}
    heard = Recorder(dict.fromkeys(range(6), 2))
    runner.generate(IDS, MASK, callback=heard, **settings)
    assert (len(heard.ran), heard.found) == (2, {})
    last = Recorder(dict.fromkeys(range(6), 16))
    runner.generate(IDS, MASK, callback=last, **settings)
    assert (len(last.ran), last.found) == (16, {})
