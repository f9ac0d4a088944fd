"""The scheduler runs samples of any settings as they come. Its rules are in docs/running.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Bools, Ints
from tightbeam.deploy.errors import InputError, short_repr
from tightbeam.deploy.runtimes.base import Runtime
from tightbeam.deploy.scheduling.events import NullEvents, SchedulerEvents, Work
from tightbeam.deploy.scheduling.lane import JoiningLane, Lane, WholeLane
from tightbeam.deploy.scheduling.sample import BatchKey, Sample
from tightbeam.deploy.search import SearchResult

__all__ = ["FailedSample", "FinishedSample", "Scheduler"]


@dataclass(frozen=True)
class FinishedSample:
    """The number of a sample and its result, which does not depend on other samples."""

    number: int
    result: SearchResult


@dataclass(frozen=True)
class FailedSample:
    """The number of a sample and the error that it failed with, running alone."""

    number: int
    error: Exception


class Scheduler:
    """Runs samples of any settings. Samples of one batch key share a lane, and the lanes take turns.

    A scheduler is for one thread. Other threads may use the runtime between two turns.

    Parameters
    ----------
    runtime : Runtime
        Runs the encoder and the decoder. If samples cannot join its batches, whole batches run one after the other.
    max_rows : int
        The most rows (samples x beams) that take steps, of all lanes together.
    lock : context manager, optional
        Held while the runtime is in use.
    events : SchedulerEvents, optional
        Receives the events of samples, and may cancel samples.
    retry : bool
        If a batch fails, run each of its samples again, alone, so that only samples that cannot be run fail. If False,
        the error ends the turn.

    Attributes
    ----------
    work : Work
        Counts of the work that was done.
    cache_bytes : (int, int)
        Bytes of the source cache and of the generated cache of the batch in which a sample ended last.
    """

    def __init__(
        self,
        runtime: Runtime,
        max_rows: int,
        lock: AbstractContextManager[Any] | None = None,
        events: SchedulerEvents | None = None,
        *,
        retry: bool = True,
    ) -> None:
        self.work = Work()
        self.cache_bytes = (0, 0)
        self._runtime, self._max_rows, self._retry = runtime, max_rows, retry
        self._lock = lock or nullcontext()
        self._events = events or NullEvents()
        self._joining = joining = runtime.joining()
        self._most_steps = 1 if joining is None else joining.steps_in_turn
        self._turn: tuple[BatchKey | None, int] = None, 0  # the lane that ran last, and its steps in this turn
        self._lanes: dict[BatchKey, Lane] = {}  # in the order of their turns
        self._owners: dict[int, Lane] = {}  # by the numbers of the samples without a result
        self._ended: list[FinishedSample | FailedSample] = []
        self._running: Lane

    @property
    def active(self) -> bool:
        """True while a turn has work to do."""
        return any(lane.active for lane in self._lanes.values())

    @property
    def waiting(self) -> int:
        """Number of samples that are not encoded yet."""
        return sum(len(lane.waiting) for lane in self._lanes.values())

    @property
    def rows(self) -> int:
        """Number of rows that have places, in all lanes."""
        return sum(lane.rows for lane in self._lanes.values())

    @property
    def wants_more(self) -> bool:
        """True if another sample should come before the next turn: no sample is there, or no whole batch is full."""
        if self._joining is not None or any(lane.running for lane in self._lanes.values()):
            return not self.active
        return all(len(lane.waiting) < lane.places for lane in self._lanes.values())

    def add(self, sample: Sample) -> None:
        """Add a sample, which runs in later turns. Between lanes, lower numbers are older.

        Raises
        ------
        InputError
            The sample has more beams than rows may run together, or the number of another sample.
        """
        if sample.options.num_beams > self._max_rows:
            raise InputError(
                f"{sample.options.rows_asked} is more than the {self._max_rows} rows that this scheduler runs "
                "together; make it with more rows"
            )
        if sample.number in self._owners:
            raise InputError(
                f"sample {sample.number} is in the scheduler already; give each sample a number of its own"
            )
        key = replace(sample, alone=False).batch_key
        if key not in self._lanes:
            self._close_idle()
            self._lanes[key] = self._new_lane(max(1, self._max_rows // sample.options.num_beams))
        self._owners[sample.number] = self._lanes[key]
        self._lanes[key].waiting.add(sample)

    def cancel(self, number: int) -> None:
        """Drop a sample, which then has no result. `Lane.cancel` says when it leaves."""
        if (lane := self._owners.pop(number, None)) is not None:
            lane.cancel(number)

    def certain(self, number: int, known: int = 0) -> Ints:
        """Return the tokens of a running sample that no later turn changes.

        Parameters
        ----------
        number : int
            The sample's number.
        known : int
            Tokens that are left out at the beginning, such as those that earlier calls returned.

        Returns
        -------
        int64 [T]
            Tokens with which its best sequence begins, the prompt of a decoder-only model among them. In beam search
            they are the common beginning of all sequences that may still be the best. Empty if the sample does not run.
        """
        lane = self._owners.get(number)
        if lane is None or lane.batch is None:
            return np.zeros(0, np.int64)
        return lane.batch.search.certain(number, known)

    def turn(self) -> list[FinishedSample | FailedSample]:
        """Run the turn of the next lane: the encoder runs if needed, samples join, and the batch takes a step.

        Returns
        -------
        list of FinishedSample or FailedSample
            The samples that have ended.
        """
        key, free = self._next()
        if key is None:
            return []
        lane, steps = self._lanes[key], self._turn[1] + 1 if key == self._turn[0] else 1
        self._turn = key, steps
        if steps >= self._most_steps:
            self._lanes[key] = self._lanes.pop(key)  # to the end of the next round
            self._turn = None, 0
        with self._lock:
            self._run_or_fail(lane, free)
        ended, self._ended = self._ended, []
        if lane.batch is not None:
            if ended:
                self.cache_bytes = lane.batch.decoding.cache_bytes
            lane.close_finished()
        return ended

    def run(self, samples: Iterable[Sample]) -> dict[int, SearchResult]:
        """Run samples to their end, close the scheduler, and return their results by number.

        Cancelled samples have no result. Raises the error of a failed sample.
        """
        return {each.number: each.result for ended in self.turns(samples) for each in ended}

    def turns(self, samples: Iterable[Sample]) -> Generator[list[FinishedSample]]:
        """Run samples to their end, and yield the samples that end with each turn. Closes the scheduler at its end.

        Raises the error of a failed sample.
        """
        try:
            for sample in samples:
                self.add(sample)
            while self.active:
                finished = []
                for ended in self.turn():
                    if isinstance(ended, FailedSample):
                        raise ended.error
                    finished.append(ended)
                yield finished
        finally:
            self.close()

    def release_buffers(self) -> None:
        """Free the memory of batches that have ended."""
        with self._lock:
            self._close_idle()
            self._runtime.release_buffers()

    def close(self) -> None:
        """Return the buffers to the runtime. Samples that are in a batch are lost."""
        for lane in self._lanes.values():
            lane.close()

    def _run_or_fail(self, lane: Lane, free: int) -> None:
        try:
            self._run(lane, free)
        except _EventFailed as failed:
            lane.fail()
            raise failed.error from failed.error.__cause__
        except Exception as error:  # an error of the runtime, or a defect
            alone = lane.fail()
            if not self._retry:
                raise
            for sample in alone:
                del self._owners[sample.number]
                self._ended.append(FailedSample(sample.number, error))
        except BaseException:
            lane.fail()
            raise

    def _run(self, lane: Lane, free: int) -> None:
        self._running = lane
        start = time.perf_counter()
        lane.fill(free)
        filled = time.perf_counter()
        self.work.prefill_seconds += filled - start
        if running := lane.running:
            self.work.steps += 1
            self.work.sample_steps += running
            lane.advance()
            self.work.step_seconds += time.perf_counter() - filled

    def _new_lane(self, places: int) -> Lane:
        if self._joining is None:
            return WholeLane(self._runtime, places, self, self._on_encode)
        return JoiningLane(self._joining, places, self, self._on_encode)

    def _close_idle(self) -> None:
        for key, lane in list(self._lanes.items()):
            if not lane.active:
                lane.close()
                del self._lanes[key]

    def _next(self) -> tuple[BatchKey | None, int]:
        """Return the key of the next lane, or None, and the number of its samples that may get a place."""
        for key in self._whole() if self._joining is None else self._lanes:
            free = self._free_places(self._lanes[key])
            if self._lanes[key].running or free:
                return key, free
        return None, 0

    def _whole(self) -> list[BatchKey]:
        """Return the lane whose whole batch runs, otherwise the lane of the oldest sample."""
        running = [key for key, lane in self._lanes.items() if lane.running]
        first = {key: found for key, lane in self._lanes.items() if (found := lane.next) is not None}
        return running or sorted(first, key=lambda key: first[key].number)[:1]

    def _free_places(self, lane: Lane) -> int:
        """Return how many samples may get a place: rows are free that the oldest sample without one does not need."""
        own = lane.next
        if own is None:
            return 0
        free, oldest = self._max_rows - self.rows, own
        for other in self._lanes.values():
            first = other.next
            if first is not None and first.number < oldest.number:
                oldest = first
        if oldest is not own:
            free -= oldest.options.num_beams
        return max(0, free // own.options.num_beams)

    def _on_encode(self, samples: Sequence[Sample]) -> None:
        self.work.prefills += 1
        self.work.samples += len(samples)
        self._report(self._events.on_started, [sample.number for sample in samples])

    def _report(self, event: Callable[..., Any], *about: Any) -> Any:
        """Report an event. Its exceptions end the turn: they are not errors of a sample."""
        try:
            return event(*about)
        except Exception as error:
            raise _EventFailed(error) from error

    # The callback of the lanes' searches

    def on_step(self, samples: Ints, tokens: Ints | None) -> Bools:
        lane, returned = self._running, self._report(self._events.on_step, samples, tokens)
        leaving = np.zeros(len(samples), np.bool_) if returned is None else np.asarray(returned, np.bool_)
        if leaving.shape != samples.shape:
            shown = short_repr(returned)
            raise _EventFailed(
                InputError(f"on_step returned {shown}, expected bool [{len(samples)}]; True cancels a sample")
            )
        if lane.cancelled:
            leaving = leaving | np.array([number in lane.cancelled for number in samples.tolist()])
        for number in samples[leaving].tolist():
            lane.forget(number)
            self._owners.pop(number, None)
        return leaving

    def on_finished(self, sample: int, result: SearchResult) -> None:
        self._running.forget(sample)
        if self._owners.pop(sample, None) is None:  # it was cancelled in this step
            return
        self._ended.append(FinishedSample(sample, result))
        self._report(self._events.on_finished, sample, result)


class _EventFailed(BaseException):
    """An exception of the caller's events. It is not an `Exception`, which would be an error of the samples."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
