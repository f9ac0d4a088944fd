"""Callbacks of a search: each sample is reported as soon as it is final, and samples may be cancelled."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from tightbeam.deploy import Runner, SearchResult, search
from tightbeam.deploy.errors import InputError

IDS = np.random.default_rng(3).integers(4, 100, (6, 9))
MASK = (np.arange(9) < np.array([9, 4, 7, 2, 9, 5])[:, None]).astype(np.int64)


class Recorder:
    """Record all calls; cancel each sample in ``cancel_after`` after its number of steps."""

    def __init__(self, cancel_after: dict[int, int] | None = None) -> None:
        self.cancel_after = cancel_after or {}
        self.ran: list[list[int]] = []
        self.tokens: dict[int, list[int]] = {}
        self.found: dict[int, SearchResult] = {}
        self.steps_before: dict[int, int] = {}

    def on_step(self, samples: np.ndarray, tokens: np.ndarray | None) -> np.ndarray:
        self.ran.append(samples.tolist())
        for sample, token in zip(samples.tolist(), samples if tokens is None else tokens.tolist(), strict=True):
            self.tokens.setdefault(sample, []).append(token)
        return np.array([len(self.ran) >= self.cancel_after.get(sample, 10**9) for sample in samples.tolist()])

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


def frequent_tokens(runner: Runner, settings: dict[str, Any]) -> list[int]:
    """Return three tokens that first occur in the best rows at as many different positions as possible."""
    rows = runner.generate(IDS, MASK, **{**settings, "min_new_tokens": 16, "num_return_sequences": 1}).sequences[
        :, -16:
    ]

    def places(tokens: tuple[int, ...]) -> int:
        found = np.isin(rows, tokens)
        return len(set(np.where(found.any(axis=1), found.argmax(axis=1), 16).tolist()))

    return list(max(itertools.combinations(np.unique(rows).tolist(), 3), key=places))


@pytest.mark.parametrize("settings", SETTINGS)
def test_each_sample_is_reported_once_with_its_own_result(runner: Runner, settings: dict[str, Any]) -> None:
    settings = {"max_new_tokens": 16, "min_length": 0, "pad_token_id": 1, "no_repeat_ngram_size": 2, **settings}
    settings["eos_token_id"] = frequent_tokens(runner, settings)
    recorder = Recorder()
    whole = runner.generate(IDS, MASK, callback=recorder, **settings)
    expected = runner.generate(IDS, MASK, **settings)
    np.testing.assert_array_equal(whole.sequences, expected.sequences)
    assert sorted(recorder.found) == list(range(6))
    assert len(set(recorder.steps_before.values())) > 1, "all ended together, so that early results were not tried"
    count = settings.get("num_return_sequences", 1)
    for sample, result in recorder.found.items():
        own = expected.of(sample, count)
        length = result.sequences.shape[1]
        np.testing.assert_array_equal(result.sequences, own.sequences[:, :length])
        assert len(set(own.sequences[:, length:].ravel().tolist())) <= 1  # padding alone is left out
        if own.scores is not None and result.scores is not None:
            np.testing.assert_array_equal(result.scores, own.scores)
        assert all(sample not in ran for ran in recorder.ran[recorder.steps_before[sample] :])
        if settings["num_beams"] == 1:
            assert recorder.tokens[sample] == result.sequences[0, length - len(recorder.tokens[sample]) :].tolist()


@pytest.mark.parametrize("settings", SETTINGS)
def test_cancelled_samples_run_no_further_step_and_change_no_other(runner: Runner, settings: dict[str, Any]) -> None:
    settings = {"max_new_tokens": 16, "min_new_tokens": 16, **settings}
    expected = Recorder()
    runner.generate(IDS, MASK, callback=expected, **settings)
    recorder = Recorder({0: 3, 3: 1, 5: 3})
    runner.generate(IDS, MASK, callback=recorder, **settings)
    assert [sorted(ran) for ran in recorder.ran] == [[*range(6)], *[[0, 1, 2, 4, 5]] * 2, *[[1, 2, 4]] * 13]
    assert sorted(recorder.found) == [1, 2, 4]
    for sample, result in recorder.found.items():
        np.testing.assert_array_equal(result.sequences, expected.found[sample].sequences)


@pytest.mark.parametrize("settings", SETTINGS)
def test_search_stops_when_all_samples_are_cancelled(runner: Runner, settings: dict[str, Any]) -> None:
    settings = {"max_new_tokens": 16, "min_new_tokens": 16, **settings}
    recorder = Recorder(dict.fromkeys(range(6), 2))
    runner.generate(IDS, MASK, callback=recorder, **settings)
    assert (len(recorder.ran), recorder.found) == (2, {})
    last = Recorder(dict.fromkeys(range(6), 16))
    runner.generate(IDS, MASK, callback=last, **settings)
    assert (len(last.ran), last.found) == (16, {})


@pytest.mark.parametrize(
    ("callback", "lacks"), [(5, "on_step and no on_finished"), (SimpleNamespace(on_step=print), "on_finished")]
)
def test_what_is_no_callback_is_refused(runner: Runner, callback: Any, lacks: str) -> None:
    example = f"{search.__name__}.{search.SearchCallback.__name__}"
    with pytest.raises(InputError, match=rf"callback=.* has no method {lacks}; pass an object with both, as {example}"):
        runner.generate(IDS, MASK, callback=callback)
    with pytest.raises(InputError, match=f"no method {lacks}"):
        runner.generate([[5, 6], [7]], callback=callback)
