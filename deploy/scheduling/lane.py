"""A lane: the waiting and the running samples that may share a batch, and how samples join the batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Array, Ints, right_pad
from tightbeam.deploy.runtimes.base import ALIGNMENT_KEYS, Decoding, Encoded, JoiningDecoding, JoiningRuntime, Runtime
from tightbeam.deploy.runtimes.known_tokens import KnownSteps
from tightbeam.deploy.runtimes.step_inputs import BeamStepper
from tightbeam.deploy.scheduling.queue import WaitingSamples
from tightbeam.deploy.scheduling.sample import BatchKey, Sample
from tightbeam.deploy.search import BatchSearch, SearchCallback, new_search
from tightbeam.deploy.search.compaction import Compaction

__all__ = ["Batch", "JoiningLane", "Lane", "WholeLane"]

UNLIMITED = 1 << 62


@dataclass(frozen=True)
class Batch:
    """The samples of a lane that take their steps together.

    Attributes
    ----------
    key : BatchKey
    decoding : Decoding
        The decoder's buffers.
    stepper : BeamStepper
        Writes the search's step inputs into them.
    known : KnownSteps
        Lets the decoder read known tokens at once.
    search : BatchSearch
    """

    key: BatchKey
    decoding: Decoding
    stepper: BeamStepper
    known: KnownSteps
    search: BatchSearch[Any]

    @classmethod
    def of(cls, decoding: Decoding, sample: Sample, callback: SearchCallback) -> Batch:
        """Make the batch without samples that ``sample`` and others of its batch key will join."""
        stepper = BeamStepper(decoding, sample.options)
        known = KnownSteps(decoding, stepper, sample.options)
        return cls(sample.batch_key, decoding, stepper, known, new_search(known, sample.options, callback))

    def start(self, sample: Sample, keys: Array | None) -> None:
        """Start the search of a sample whose source has a place in the decoding.

        ``keys`` [A, N, K] are the keys of the alignment heads, if the settings ask for them; those behind the sample's
        own positions are padding.
        """
        self.stepper.join(sample.number, sample.first_length, sample.first_position)
        read = self.known.begin(len(self.search.places), sample.options)
        self.search.join(sample.number, sample.options, sample.prompt, sample.tokens, read)
        if keys is not None:
            self.search.align(keys[:, : sample.positions], sample.mask)


class Lane:
    """The samples of one batch key that have no result yet; a subclass says when they join the running batch.

    Samples that run again after a failure are in the lane too, each with a batch of its own.

    Parameters
    ----------
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

    def __init__(self, places: int, callback: SearchCallback, on_encode: Callable[[Sequence[Sample]], None]) -> None:
        self.places = places
        self.waiting = WaitingSamples()
        self.batch: Batch | None = None
        self.cancelled: set[int] = set()
        self._callback, self._on_encode = callback, on_encode

    # What a kind of lane defines.

    def fill(self, places: int) -> None:
        """Give places to at most so many samples, and encode samples if none of them is encoded."""
        raise NotImplementedError

    @property
    def next(self) -> Sample | None:
        """The sample that gets the next place; None if all samples have a place."""
        return self.waiting.oldest() if len(self.waiting) else None

    def close_finished(self) -> None:
        """Return the buffers of a batch that has ended and that no sample can join."""

    # What all lanes do.

    @property
    def running(self) -> int:
        """Number of samples that have a place in the batch."""
        return 0 if self.batch is None else len(self.batch.search.places)

    @property
    def rows(self) -> int:
        """Number of rows that have a place in the batch."""
        return 0 if self.batch is None else len(self.batch.search.places) * self.batch.search.M

    @property
    def active(self) -> bool:
        """True if a sample waits, is encoded, or runs."""
        return bool(self.running) or self.next is not None

    def advance(self) -> None:
        """Run one step of the batch."""
        assert self.batch is not None
        self.batch.search.advance()

    def cancel(self, number: int) -> None:
        """Drop a sample. A running one leaves after the next step, or the first step behind its decoder prompt."""
        if not self.waiting.remove(number):
            self.cancelled.add(number)

    def forget(self, number: int) -> None:
        """Forget a sample that has left the batch."""
        self.waiting.forget(number)
        self.cancelled.discard(number)

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
            self.batch.decoding.close()
        self._drop()

    def _drop(self) -> None:
        self.batch = None
        self.cancelled.clear()


class WholeLane(Lane):
    """A lane whose samples join the batch only at its beginning, for a runtime that allocates buffers for each batch.

    Parameters
    ----------
    runtime : Runtime
    places, callback, on_encode
        Arguments of `Lane`.
    """

    def __init__(
        self,
        runtime: Runtime,
        places: int,
        callback: SearchCallback,
        on_encode: Callable[[Sequence[Sample]], None],
    ) -> None:
        super().__init__(places, callback, on_encode)
        self._runtime = runtime

    def fill(self, places: int) -> None:
        if self.running or not len(self.waiting) or not places:
            return
        if self.batch is not None and self.batch.key != self.waiting.oldest().batch_key:
            self.close()
        samples = self.waiting.take(positions=UNLIMITED, samples=min(places, self.places))
        self._on_encode(samples)
        source, mask = _padded(samples)
        first, history = samples[0].options, max(sample.options.max_length for sample in samples) - 1
        cached = max(sample.cached for sample in samples)
        P, groups = history + 1 - cached, first.candidate_groups
        shape = first.num_beams, cached, first.candidates, P, groups
        decoding = self._runtime.begin(source, mask, *shape, aligned=first.aligned)
        batch = Batch.of(decoding, samples[0], self._callback)
        for index, sample in enumerate(samples):
            batch.start(sample, None if decoding.alignment_keys is None else decoding.alignment_keys[index])
        self.batch = batch

    def close_finished(self) -> None:
        if self.batch is not None and not self.running:
            self.close()


class JoiningLane(Lane):
    """A lane whose samples join the batch between any two steps.

    Parameters
    ----------
    runtime : JoiningRuntime
    places, callback, on_encode
        Arguments of `Lane`.
    """

    def __init__(
        self,
        runtime: JoiningRuntime,
        places: int,
        callback: SearchCallback,
        on_encode: Callable[[Sequence[Sample]], None],
    ) -> None:
        super().__init__(places, callback, on_encode)
        self._runtime = runtime
        self._encoded: deque[tuple[Sample, Encoded, int]] = deque()  # without a place
        self._decoding: JoiningDecoding | None = None  # of the batch
        self._places: int  # likewise

    @property
    def next(self) -> Sample | None:
        return self._encoded[0][0] if self._encoded else super().next

    def cancel(self, number: int) -> None:
        found = next((entry for entry in self._encoded if entry[0].number == number), None)
        if found is None:
            super().cancel(number)
        else:
            self._encoded.remove(found)
            self.waiting.forget(number)

    def fill(self, places: int) -> None:
        """Let samples join while there are places. If no encoded sample waits, encode more: once if other samples run,
        otherwise until all places are taken."""
        if not (self.running or self._encoded) and len(self.waiting) and places:
            self._begin()
        batch, running = self.batch, self.running
        if batch is None:
            return
        encodes, empty, most = True, not running, min(self._places, running + places)
        while self.running < most:
            if self._encoded:
                self._join(batch, *self._encoded.popleft())
            elif encodes and len(self.waiting) and self.waiting.oldest().batch_key == batch.key:
                samples = self.waiting.take(
                    positions=self._runtime.encoded_together, samples=self._runtime.most_samples
                )
                self._on_encode(samples)
                self._encode(samples)
                encodes = empty
            else:
                return

    def advance(self) -> None:
        batch = self.batch
        super().advance()
        if batch is not None and not len(batch.search.places):  # the search does not remove the last samples
            left = len(batch.decoding.inputs["lengths"])
            batch.stepper.compact(Compaction.of(np.ones(left, np.bool_)))

    def _begin(self) -> None:
        """Make the batch of the oldest waiting sample, unless the batch without samples is one for it. The buffers are
        large enough for the samples to be encoded soon."""
        if self.batch is not None:
            if self.batch.key == self.waiting.oldest().batch_key:
                return
            self.close()
        near = self.waiting.near()
        options = near[0].options
        self._places = min(1 if near[0].alone else self.places, self._runtime.most_samples)
        try:
            decoding = self._runtime.open(self._places, options.num_beams, options.candidates, options.candidate_groups)
            decoding.reserve(
                width=max(sample.width for sample in near),
                positions=max(sample.cached for sample in near),
                tokens=max(sample.options.max_length for sample in near) - 1,
            )
            self.batch, self._decoding = Batch.of(decoding, near[0], self._callback), decoding
        except Exception:  # such as not enough memory for its buffers: the oldest sample runs alone next, or fails
            self.waiting.take(positions=1, samples=1)
            raise

    def _encode(self, samples: Sequence[Sample]) -> None:
        assert self._decoding is not None
        source, mask = _padded(samples)
        into = self._decoding.free_places(*mask.shape)
        options, kept = samples[0].options, samples[0].kept
        encoded = self._runtime.encode(source, mask, options.num_beams, into, aligned=options.aligned, kept=kept)
        self._encoded.extend((sample, encoded, index) for index, sample in enumerate(samples))

    def _join(self, batch: Batch, sample: Sample, encoded: Encoded, index: int) -> None:
        assert self._decoding is not None
        self._decoding.join(
            encoded, index, width=sample.width, positions=sample.cached, tokens=sample.options.max_length - 1
        )
        batch.start(sample, encoded[ALIGNMENT_KEYS][index].copy() if sample.options.aligned else None)

    def _drop(self) -> None:
        super()._drop()
        self._decoding = None
        self._encoded.clear()


def _padded(samples: Sequence[Sample]) -> tuple[Array, Ints]:
    """Return sources [B, ...], padded on the right, and their mask int64 [B, N]."""
    widest = max(sample.width for sample in samples)
    mask = (np.arange(widest) < np.array([sample.positions for sample in samples])[:, None]).astype(np.int64)
    for row, sample in zip(mask, samples, strict=True):
        if sample.mask is not None:
            row[: len(sample.mask)] = sample.mask
    if samples[0].has_features:  # of one length: `WaitingSamples.take`
        return np.stack([sample.source for sample in samples]), mask
    return right_pad([sample.source for sample in samples])[0], mask
