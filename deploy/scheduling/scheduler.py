"""The scheduler: samples wait, are encoded with others of like length, join the running batch, and leave it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Bools, Ints
from tightbeam.deploy.errors import BundleError
from tightbeam.deploy.runtimes.base import Runtime
from tightbeam.deploy.scheduling.batch import Batch, JoiningBatch, WholeBatch
from tightbeam.deploy.scheduling.events import NullEvents, SchedulerEvents, Work
from tightbeam.deploy.scheduling.queue import WaitingSamples
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.search import SearchResult

__all__ = ["FailedSample", "FinishedSample", "Scheduler"]


@dataclass(frozen=True)
class FinishedSample:
    """A sample's number and its result, which no other sample has changed."""

    number: int
    result: SearchResult


@dataclass(frozen=True)
class FailedSample:
    """A sample's number, and the error that ended it while it ran alone."""

    number: int
    error: Exception


class Scheduler:
    """Runs samples as they come. docs/design.md has the rule by which they are run.

    It is used by one thread. The runtime may be used by others between two turns.

    Parameters
    ----------
    runtime : Runtime
        Runs the two graphs. Where its batches cannot be joined, samples are run in whole batches.
    batch_size : int
        The most samples in the running batch.
    lock : context manager, optional
        Held while the runtime is in use.
    events : SchedulerEvents, optional
        Receives what happens to samples.
    work : Work, optional
        Receives the work that is done.
    """

    def __init__(
        self,
        runtime: Runtime,
        batch_size: int,
        lock: AbstractContextManager[Any] | None = None,
        *,
        events: SchedulerEvents | None = None,
        work: Work | None = None,
    ) -> None:
        self._runtime, self._joining = runtime, runtime.joining()
        self._lock = lock or nullcontext()
        self._batch_size = batch_size
        self._events, self._work = events or NullEvents(), work or Work()
        self._waiting = WaitingSamples()
        self._batch: Batch | None = None
        self._cancelled: set[int] = set()
        self._ended: list[FinishedSample | FailedSample] = []
        self._last: tuple[int, int] = (0, 0)

    @property
    def waiting(self) -> int:
        """Samples that are not encoded yet."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Samples that have a place in the batch."""
        return 0 if self._batch is None else len(self._batch)

    @property
    def running_rows(self) -> int:
        """Their rows."""
        return 0 if self._batch is None else len(self._batch) * self._batch.group[0]

    @property
    def next(self) -> Sample | None:
        """The sample that is the next to get a place; None where all have one."""
        batch = self._batch
        if isinstance(batch, JoiningBatch) and batch.encoded:
            return batch.next
        return self._waiting.oldest() if len(self._waiting) else None

    @property
    def active(self) -> bool:
        """True while a turn has something to do."""
        return bool(len(self._waiting) or self._in_batch())

    @property
    def wants_more(self) -> bool:
        """True where another sample should come before the next turn: there is none, or a whole batch is not full."""
        if self._joining is None and not self._in_batch():
            return len(self._waiting) < self._batch_size
        return not self.active

    @property
    def cache_bytes(self) -> tuple[int, int]:
        """Bytes of the source cache and of the generated cache of the latest batch."""
        return self._last

    def add(self, sample: Sample) -> None:
        """Add a sample. It is run in later turns."""
        self._waiting.add(sample)

    def is_waiting(self, number: int) -> bool:
        """True for a sample that is not encoded yet."""
        return number in self._waiting

    def cancel(self, number: int) -> None:
        """Drop a sample, which has no result then.

        One in the batch leaves it after the next step, or after the first step behind its decoder prompt.
        """
        batch = self._batch
        if self._waiting.remove(number):
            return
        if isinstance(batch, JoiningBatch) and batch.forget(number):
            self._waiting.forget(number)
            return
        if batch is not None and number in batch:
            self._cancelled.add(number)

    def turn(self, room: int | None = None) -> list[FinishedSample | FailedSample]:
        """Encode samples once at most, let them join, run one step, and return the samples that have ended.

        Where the runtime fails, the samples of the batch wait again, and each runs alone in later turns. One that fails
        alone ends with its error.

        Parameters
        ----------
        room : int, optional
            The most samples that may get a place in this turn; by default as many as there are places.
        """
        try:
            with self._lock:
                start = time.perf_counter()
                self._fill(self._batch_size if room is None else room)
                filled = time.perf_counter()
                self._work.prefill_seconds += filled - start
                if self._batch is not None and len(self._batch):
                    self._work.steps += 1
                    self._work.sample_steps += len(self._batch)
                    self._batch.advance()
                    self._work.step_seconds += time.perf_counter() - filled
        except BundleError as error:
            failed = self._waiting.return_taken(self._cancelled)
            self._ended += [FailedSample(sample.number, error) for sample in failed]
            self._drop_batch()
        except BaseException:
            self._waiting.return_taken(self._cancelled)
            self._drop_batch()
            raise
        if self._batch is not None:
            self._last = self._batch.decoding.cache_bytes
            if isinstance(self._batch, WholeBatch) and not len(self._batch):
                self.close()
        ended, self._ended = self._ended, []
        return ended

    def _drop_batch(self) -> None:
        """Forget a batch that has failed, with its buffers, which are not reused."""
        self._batch = None
        self._cancelled.clear()

    def run(self, samples: Iterable[Sample]) -> dict[int, SearchResult]:
        """Run samples to their end, close the scheduler, and return their results by number.

        Raises
        ------
        BundleError
            A sample failed.
        """
        for sample in samples:
            self.add(sample)
        found = {}
        try:
            while self.active:
                for ended in self.turn():
                    if isinstance(ended, FailedSample):
                        raise ended.error
                    found[ended.number] = ended.result
        finally:
            self.close()
        return found

    def close(self) -> None:
        """Return the buffers to the runtime. Samples of the batch are lost, and later turns open another."""
        if self._batch is not None:
            self._batch.close()
        self._drop_batch()

    def _in_batch(self) -> int:
        batch = self._batch
        return 0 if batch is None else len(batch) + (batch.encoded if isinstance(batch, JoiningBatch) else 0)

    def _fill(self, room: int) -> None:
        if not self._in_batch() and len(self._waiting) and room:
            oldest = self._waiting.oldest()
            if self._batch is not None and self._batch.group != oldest.group:
                self.close()
            if self._joining is None:
                samples = self._waiting.take(positions=1 << 62, samples=min(room, self._batch_size))
                self._start(samples)
                self._batch = WholeBatch(self._runtime, samples, self)
            elif self._batch is None:
                near = self._waiting.near()
                try:
                    self._batch = JoiningBatch(self._joining, near, self._batch_size, self)
                except BundleError:  # no memory for its buffers: so that the oldest runs alone, or fails
                    self._waiting.take(positions=1, samples=1)
                    raise
        if isinstance(self._batch, JoiningBatch):
            self._batch.fill(self._waiting, room, self._start)

    def _start(self, samples: Sequence[Sample]) -> None:
        self._work.prefills += 1
        self._work.samples += len(samples)
        self._events.on_started([sample.number for sample in samples])

    # The callback of the search

    def on_step(self, samples: Ints, tokens: Ints | None) -> Bools:
        if tokens is not None:
            self._events.on_tokens(samples, tokens)
        cancelled = np.array([number in self._cancelled for number in samples.tolist()], np.bool_)
        if cancelled.any():
            for number in samples[cancelled].tolist():
                self._cancelled.remove(number)
                self._waiting.forget(number)
        return cancelled

    def on_finished(self, sample: int, result: SearchResult) -> None:
        self._waiting.forget(sample)
        self._ended.append(FinishedSample(sample, result))
