"""A lane: the waiting and the running samples that may share a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tightbeam.deploy.runtimes.base import Runtime
from tightbeam.deploy.scheduling.batch import Batch, JoiningBatch, WholeBatch
from tightbeam.deploy.scheduling.queue import WaitingSamples
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.search.callbacks import SearchCallback

__all__ = ["Lane"]

UNLIMITED = 1 << 62


class Lane:
    """The samples of one batch key that have no result yet.

    Samples that run again after a failure are in the lane too, each with a batch of its own.

    Parameters
    ----------
    runtime : Runtime
    places : int
        The most samples in the running batch.
    callback : SearchCallback
        Receives tokens and results, by the samples' numbers.
    on_encode : function
        Called with the samples that are about to be encoded.

    Attributes
    ----------
    batch : Batch or None
        The running batch.
    waiting : WaitingSamples
        The samples that are not encoded yet.
    cancelled : set of int
        Numbers of the running samples that leave with a later step.
    """

    def __init__(
        self,
        runtime: Runtime,
        places: int,
        callback: SearchCallback,
        on_encode: Callable[[Sequence[Sample]], None],
    ) -> None:
        self._runtime, self._joining = runtime, runtime.joining()
        self._callback, self._on_encode = callback, on_encode
        self.places = places
        self.waiting = WaitingSamples()
        self.batch: Batch | None = None
        self.cancelled: set[int] = set()

    @property
    def running(self) -> int:
        """Number of samples that have a place in the batch."""
        return 0 if self.batch is None else len(self.batch)

    @property
    def encoded(self) -> int:
        """Number of samples that are encoded and wait for a place."""
        return self.batch.encoded if isinstance(self.batch, JoiningBatch) else 0

    @property
    def rows(self) -> int:
        """Number of rows that have a place in the batch."""
        return 0 if self.batch is None else len(self.batch) * self.batch.num_beams

    @property
    def active(self) -> bool:
        """True if a sample waits, is encoded, or runs."""
        return bool(len(self.waiting) or self.running or self.encoded)

    @property
    def next(self) -> Sample | None:
        """The sample that gets the next place; None if all samples have a place."""
        if isinstance(self.batch, JoiningBatch) and self.batch.encoded:
            return self.batch.next
        return self.waiting.oldest() if len(self.waiting) else None

    def cancel(self, number: int) -> None:
        """Drop a sample. A running one leaves after the next step, or the first step behind its decoder prompt."""
        if self.waiting.remove(number):
            return
        if isinstance(self.batch, JoiningBatch) and self.batch.forget(number):
            self.waiting.forget(number)
        else:
            self.cancelled.add(number)

    def forget(self, number: int) -> None:
        """Forget a sample that has left the batch."""
        self.waiting.forget(number)
        self.cancelled.discard(number)

    def fill(self, places: int) -> None:
        """Give places to at most so many samples, and encode samples if none of them is encoded."""
        if not (self.running or self.encoded) and len(self.waiting) and places:
            self._begin(places)
        if isinstance(self.batch, JoiningBatch):
            self.batch.fill(self.waiting, places, self._on_encode)

    def _begin(self, free: int) -> None:
        """Make the batch of the oldest waiting sample."""
        if self.batch is not None and self.batch.key != self.waiting.oldest().batch_key:
            self.close()
        if self._joining is None:
            samples = self.waiting.take(positions=UNLIMITED, samples=min(free, self.places))
            self._on_encode(samples)
            self.batch = WholeBatch(self._runtime, samples, self._callback)
        elif self.batch is None:
            near = self.waiting.near()
            places = 1 if near[0].alone else self.places
            try:
                self.batch = JoiningBatch(self._joining, near, places, self._callback)
            except Exception:  # such as not enough memory for its buffers: the oldest sample runs alone next, or fails
                self.waiting.take(positions=1, samples=1)
                raise

    def fail(self) -> list[Sample]:
        """Drop the failed batch and its buffers. Its samples wait again, and each will run alone.

        Returns
        -------
        list of Sample
            The samples that were alone in the batch. They do not wait again.
        """
        alone = self.waiting.return_taken(self.cancelled)
        self._drop()
        return alone

    def close(self) -> None:
        """Return the buffers to the runtime. Samples in the batch are lost."""
        if self.batch is not None:
            self.batch.close()
        self._drop()

    def close_finished(self) -> None:
        """Return the buffers of a whole batch that has ended."""
        if isinstance(self.batch, WholeBatch) and not len(self.batch):
            self.close()

    def _drop(self) -> None:
        self.batch = None
        self.cancelled.clear()
