"""Lanes that take turns: rows in common, nobody starves, failures stay with their sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from tightbeam.deploy import Runner
from tightbeam.deploy.arrays import Bools, Ints
from tightbeam.deploy.errors import ExecutionError, InputError
from tightbeam.deploy.runtimes.onnxruntime_cpu import CpuDecoding
from tightbeam.deploy.scheduling.events import NullEvents
from tightbeam.deploy.scheduling.scheduler import FailedSample, Scheduler


class Events(NullEvents):
    def __init__(self) -> None:
        self.started: list[int] = []
        self.tokens: dict[int, list[int]] = {}

    def on_started(self, samples: Sequence[int]) -> None:
        self.started += samples

    def on_step(self, samples: Ints, tokens: Ints | None) -> Bools:
        for number, token in zip(
            samples.tolist(), [] if tokens is None else tokens.tolist(), strict=tokens is not None
        ):
            self.tokens.setdefault(number, []).append(token)
        return super().on_step(samples, tokens)


@pytest.fixture(scope="module")
def runner(bundles: BundleCache) -> Runner:
    return Runner.load(bundles("dedup"), threads=1)


def asked(beams: int, tokens: int, **others: Any) -> dict[str, Any]:
    return {"num_beams": beams, "max_new_tokens": tokens, "min_new_tokens": tokens, **others}


def run(scheduler: Scheduler) -> dict[int, Any]:
    found: dict[int, Any] = {}
    while scheduler.active:
        for ended in scheduler.turn():
            assert ended.number not in found
            found[ended.number] = ended.error if isinstance(ended, FailedSample) else ended.result
    return found


def test_random_arrivals_get_what_they_get_alone(runner: Runner) -> None:
    generator = np.random.default_rng(8)
    for _ in range(6):
        events, found = Events(), {}
        scheduler = runner.scheduler(int(generator.integers(4, 12)), events)
        made = []
        for number in range(14):
            given = asked(int(generator.choice([1, 1, 2, 4])), int(generator.integers(2, 9)))
            given["no_repeat_ngram_size"] = int(generator.choice([0, 2]))
            made.append((generator.integers(4, 90, generator.integers(1, 20)).tolist(), given))
            scheduler.add(runner.sample(number, *made[-1]))
            for _ in range(generator.integers(3)):
                found |= {ended.number: ended.result for ended in scheduler.turn()}
                assert scheduler.rows <= scheduler._max_rows
        found |= run(scheduler)
        scheduler.close()
        assert sorted(events.started) == sorted(found) == list(range(14))
        for number, (tokens, given) in enumerate(made):
            expected = runner.generate([tokens], **given).sequences
            np.testing.assert_array_equal(found[number].sequences, expected)
            if given["num_beams"] == 1:
                assert events.tokens[number] == expected[0, 1:].tolist()
            else:
                assert number not in events.tokens
        assert scheduler.work.samples == 14 and scheduler.work.sample_steps >= scheduler.work.steps


def test_a_sample_of_another_lane_does_not_wait_for_the_end_of_a_batch(runner: Runner) -> None:
    scheduler = runner.scheduler(8, Events())
    scheduler.add(runner.sample(0, [5, 6, 2], asked(1, 40)))
    for _ in range(5):
        scheduler.turn()
    scheduler.add(runner.sample(1, [5, 6, 2], asked(2, 6)))
    turns = 0
    while not (ended := scheduler.turn()):
        turns += 1
    assert [each.number for each in ended] == [1] and turns <= 12, "expected every other turn to be its own"
    assert [*run(scheduler)] == [0]


def test_wide_search_is_not_starved_by_narrow_ones(runner: Runner) -> None:
    """Greedy samples keep coming. The search that needs all rows gets them when those before it are through."""
    scheduler = runner.scheduler(4, Events())
    order: list[int] = []
    for number in range(4):
        scheduler.add(runner.sample(number, [5, 6, 2], asked(1, 3 + number)))
    scheduler.turn()
    scheduler.add(runner.sample(4, [5, 6, 2], asked(4, 3)))
    for number in range(5, 20):
        scheduler.add(runner.sample(number, [5, 6, 2], asked(1, 3)))
        order += [ended.number for ended in scheduler.turn()]
    order += run(scheduler)
    assert order[:5] == [0, 1, 2, 3, 4] and sorted(order) == list(range(20))


def test_cancelled_samples_have_no_result(runner: Runner) -> None:
    scheduler = runner.scheduler(2, Events())
    for number in range(4):
        scheduler.add(runner.sample(number, [5, 6, 2], asked(1 + number % 2, 9)))
    scheduler.turn()
    for number in (0, 3):
        scheduler.cancel(number)
    assert sorted(run(scheduler)) == [1, 2]


@pytest.mark.parametrize("error", [ExecutionError("no memory"), ZeroDivisionError("a defect")])
def test_failure_stays_with_its_sample(runner: Runner, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A batch fails in its third step; the samples that do not fail alone get their results."""
    step = CpuDecoding.step

    def failing(self: CpuDecoding) -> Any:
        if (self.inputs["tokens"] == 77).any():
            raise error
        return step(self)

    given = asked(1, 6)
    expected = {number: runner.generate([[5 + number, 6, 2]], **given).sequences for number in range(3)}
    monkeypatch.setattr(CpuDecoding, "step", failing)
    events = Events()
    scheduler = runner.scheduler(8, events)
    for number in range(3):
        scheduler.add(runner.sample(number, [5 + number, 6, 2], given))
    scheduler.add(runner.sample(3, [5, 6, 2], {**given, "forced_bos_token_id": 77}))
    scheduler.add(runner.sample(4, [5, 6, 2], asked(2, 6)))  # another lane
    found = run(scheduler)
    assert found.pop(3) is error and events.started.count(3) == 2
    assert events.started.count(4) == 1 and len(found.pop(4).sequences) == 1
    for number, result in found.items():
        np.testing.assert_array_equal(result.sequences, expected[number])
    assert sorted(found) == [0, 1, 2]


def test_what_a_scheduler_cannot_run_is_refused(runner: Runner) -> None:
    scheduler, match = (
        runner.scheduler(3),
        "num_beams=4 is more than the 3 rows that this scheduler runs together; make it",
    )
    with pytest.raises(InputError, match=match):
        scheduler.add(runner.sample(0, [5, 6, 2], asked(4, 3)))
    scheduler.add(runner.sample(0, [5, 6, 2], asked(1, 3)))
    with pytest.raises(InputError, match="sample 0 is in the scheduler already; give each sample a number of its own"):
        scheduler.add(runner.sample(0, [5, 6, 2], asked(1, 3)))
    wrong: tuple[Any, ...] = (0, -1, 4.0, True, None)
    for rows in wrong:
        with pytest.raises(InputError, match="is not a number of rows; pass 1 or more"):
            runner.scheduler(rows)


@pytest.mark.parametrize("raising", ["on_started", "on_step", "on_finished"])
def test_an_error_of_the_events_is_not_one_of_a_sample(runner: Runner, raising: str) -> None:
    events = Events()

    def fail(*about: Any) -> Any:
        raise LookupError("of the caller")

    setattr(events, raising, fail)
    scheduler = runner.scheduler(4, events)
    scheduler.add(runner.sample(0, [5, 6, 2], asked(1, 3)))
    with pytest.raises(LookupError, match="of the caller"):
        run(scheduler)


@pytest.mark.parametrize("returned", [True, [True, False], [[True]], "no"])
def test_a_wrong_answer_of_on_step_is_refused(runner: Runner, returned: Any) -> None:
    class Wrong(NullEvents):
        def on_step(self, samples: Ints, tokens: Ints | None) -> Any:
            return returned

    with pytest.raises(InputError, match=r"on_step returned .*, expected bool \[1\]; True cancels a sample"):
        runner.generate([[5, 6, 2]], callback=Wrong(), max_new_tokens=2)
    with pytest.raises(InputError, match=r"callback is the class Wrong, expected an object of it; pass Wrong\(\)"):
        runner.generate([[5, 6, 2]], callback=Wrong, max_new_tokens=2)  # type: ignore[arg-type]


def test_a_callback_that_generates_is_refused(runner: Runner) -> None:
    class Nested(NullEvents):
        def on_finished(self, sample: int, result: Any) -> None:
            runner.generate([[5, 6]], max_new_tokens=2)

    with pytest.raises(InputError, match="a callback cannot generate with the model that calls it; generate after the"):
        runner.generate([[5, 6, 2]], callback=Nested(), max_new_tokens=2)
    assert len(runner.generate([[5, 6, 2]], max_new_tokens=2).sequences) == 1


def test_a_sample_that_on_finished_cancels_has_no_result(runner: Runner) -> None:
    """Both would finish in the same step."""
    told: list[int] = []

    class Cancelling(Events):
        def on_finished(self, sample: int, result: Any) -> None:
            told.append(sample)
            scheduler.cancel(1 - sample)

    scheduler = runner.scheduler(4, Cancelling())
    for number in range(2):
        scheduler.add(runner.sample(number, [5, 6, 2], asked(1, 3)))
    assert [*run(scheduler)] == told == [0]


def test_absurd_settings_change_nothing(runner: Runner) -> None:
    sampled: dict[str, Any] = {"do_sample": True, "seed": 3, "max_new_tokens": 4}
    first, second = (runner.generate([[5, 6, 7]], top_k=k, **sampled).sequences for k in (2**31 - 1, 1000))
    np.testing.assert_array_equal(first, second)
    assert len(runner.generate([[5, 6, 7]], encoder_no_repeat_ngram_size=2**31 - 1, max_new_tokens=2).sequences) == 1


@pytest.mark.parametrize(
    "tokens", [[1.5, 2.0], [True], "abc", [[1, 2]], None, 5, [None], ["5"], {5, 6}, np.ones((2, 2), int)]
)
def test_what_is_not_a_row_of_token_ids_is_refused(runner: Runner, tokens: Any) -> None:
    with pytest.raises(InputError, match=r"the token ids (are|hold) .*, expected integers"):
        runner.sample(0, tokens, {})
