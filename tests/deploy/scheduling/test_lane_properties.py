"""Lanes of samples over a made-up decoder, at random: results, rows, turns and failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import hypothesis
import numpy as np
from hypothesis import strategies as st

from support.searches.driver import search
from support.searches.made_up_decoder import EOS, Faults, MadeUpAlone, MadeUpDecoding, MadeUpRuntime, options_of
from tightbeam.deploy.errors import ExecutionError
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.scheduling.scheduler import FailedSample, Scheduler

MAX_ROWS, LONGEST = 6, 10
SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_beams": 1},
    {"num_beams": 1, "no_repeat_ngram_size": 2},
    {"num_beams": 2, "num_return_sequences": 2},
    {"num_beams": 3, "early_stopping": "never"},
    {"num_beams": MAX_ROWS},
)
"""Five batch keys; one takes all rows."""
SAMPLE = st.fixed_dictionaries(
    {
        "settings": st.integers(0, len(SETTINGS) - 1),
        "width": st.integers(1, 9),
        "max_length": st.integers(2, LONGEST),
        "comes": st.integers(0, 8),
        "stays": st.sampled_from([None, None, None, None, 0, 1, 2, 5]),  # turns before it is cancelled
        "fault": st.sampled_from([None, None, None, None, None, 0, 1, 3, -1, -2]),
    }
)
SAMPLES = st.lists(SAMPLE, min_size=1, max_size=12).map(lambda samples: sorted(samples, key=lambda each: each["comes"]))


class WatchedRuntime(MadeUpRuntime):
    """A runtime that reports the number of each sample that joins: its source begins with it."""

    def __init__(self, faults: Faults, most: int | None, on_join: Callable[[int], None]) -> None:
        super().__init__(faults, most)
        self._on_join = on_join

    def open(self, places: int, num_beams: int, candidates: int, groups: int = 1) -> MadeUpDecoding:
        decoding = super().open(places, num_beams, candidates, groups)
        join = decoding.join

        def watched(encoded: Mapping[str, Any], sample: int, **sizes: int) -> None:
            join(encoded, sample, **sizes)
            self._on_join(encoded["source"][sample][0])

        decoding.join = watched  # type: ignore[method-assign]
        return decoding


class Watched:
    """A scheduler, whose rows and turns are checked whenever a sample joins and after every turn."""

    def __init__(self, faults: Faults, most: int | None) -> None:
        self.scheduler = Scheduler(WatchedRuntime(faults, most, self._joined), MAX_ROWS)
        self.made: dict[int, Sample] = {}
        self.ended: dict[int, FailedSample | Any] = {}
        self.cancelled: set[int] = set()
        self.broken: list[str] = []  # rules; an exception would be the error of a sample
        self._oldest: Sample | None = None  # as the turn began
        self._age = 0  # turns in which it has been the same one

    def add(self, number: int, given: Mapping[str, Any]) -> Sample:
        options = options_of(eos_token_id=EOS, max_length=given["max_length"], **SETTINGS[given["settings"]])
        self.made[number] = Sample.of_tokens(number, [number, *range(given["width"])], options)
        self.scheduler.add(self.made[number])
        return self.made[number]

    def cancel(self, number: int) -> None:
        if number not in self.ended:
            self.cancelled.add(number)
        self.scheduler.cancel(number)

    def turn(self) -> None:
        lanes = list(self.scheduler._lanes.values())
        waiting = [sample for lane in lanes if (sample := lane.next) is not None]
        oldest = min(waiting, key=lambda sample: sample.number, default=None)
        number = None if self._oldest is None else self._oldest.number
        self._age = self._age + 1 if oldest is not None and oldest.number == number else 0
        self._oldest = oldest
        # Those that run have at most so many steps left, and every lane takes its turn between two of them.
        assert self._age <= len(lanes) * LONGEST, "the oldest sample starves"
        for ended in self.scheduler.turn():
            assert ended.number not in self.ended and ended.number not in self.cancelled
            self.ended[ended.number] = None if isinstance(ended, FailedSample) else ended.result
        assert not self.broken

    def _joined(self, number: int) -> None:
        rows, oldest = self.scheduler.rows + self.made[number].options.num_beams, self._oldest
        if rows > MAX_ROWS:
            self.broken.append(f"{rows} rows")
        if oldest is None or oldest.number >= number or oldest.batch_key[:4] == self.made[number].batch_key[:4]:
            return
        if rows + oldest.options.num_beams > MAX_ROWS:
            self.broken.append(f"sample {number} takes rows that {oldest.number} waits for")

    def check(self, faults: Faults) -> None:
        """Each sample has the one result that it has alone, unless it was cancelled."""
        assert self.ended.keys() | self.cancelled == self.made.keys()
        for number, result in self.ended.items():
            sample, source = self.made[number], self.made[number].source.tolist()
            try:
                expected = search(MadeUpAlone(source, sample.options, faults.get(tuple(source))), sample.options, 1)
            except ExecutionError:
                assert result is None
                continue
            assert result is not None
            np.testing.assert_array_equal(result.sequences, expected.sequences)
            assert (result.scores is None) == (expected.scores is None)
            if expected.scores is not None:
                np.testing.assert_array_equal(result.scores, expected.scores)


@hypothesis.settings(max_examples=100, deadline=None, derandomize=True)
@hypothesis.given(samples=SAMPLES, most=st.sampled_from([None, None, 1, 2]))
def test_each_sample_of_any_lane_gets_what_it_gets_alone(samples: list[dict[str, Any]], most: int | None) -> None:
    """Random arrivals, lengths, cancellations, samples that fail, and batches that fail by their size."""
    faults: Faults = {}
    watched = Watched(faults, most)
    for turn in count():
        for number, given in enumerate(samples):
            if given["comes"] == turn:
                sample = watched.add(number, given)
                if given["fault"] is not None:
                    faults[tuple(sample.source.tolist())] = given["fault"]
            if given["stays"] is not None and given["comes"] + given["stays"] == turn:
                watched.cancel(number)
        watched.turn()
        if turn > 13 and not watched.scheduler.active:
            break
        assert turn < 1000
    watched.check(faults)
    assert watched.scheduler.rows == watched.scheduler.waiting == 0
    assert not watched.scheduler._owners


@hypothesis.settings(max_examples=25, deadline=None, derandomize=True)
@hypothesis.given(
    samples=st.lists(SAMPLE, min_size=1, max_size=4),
    stream=st.lists(st.integers(0, 2), min_size=1, max_size=4),
    each_turn=st.integers(1, 3),
)
def test_nobody_starves_under_a_stream_of_younger_samples(
    samples: list[dict[str, Any]], stream: list[int], each_turn: int
) -> None:
    """Younger samples that need few rows come faster than they end, for as long as the first ones have no result."""
    watched = Watched({}, None)
    for number, given in enumerate(samples):
        watched.add(number, given)
    turns = 5 * LONGEST * (len(samples) + 1)
    for _ in range(turns):
        for _ in range(each_turn):
            number = len(watched.made)
            watched.add(number, {"settings": stream[number % len(stream)], "width": 1 + number % 3, "max_length": 6})
        watched.turn()
        if all(number in watched.ended for number in range(len(samples))):
            return
    raise AssertionError(f"no result after {turns} turns")
