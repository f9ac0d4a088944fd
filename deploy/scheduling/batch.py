"""The running batch of a lane: its decoding, its search, and how samples join it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from tightbeam.deploy.arrays import Array, Ints, right_pad
from tightbeam.deploy.runtimes.base import ALIGNMENT_KEYS, Decoding, Encoded, JoiningDecoding, JoiningRuntime, Runtime
from tightbeam.deploy.runtimes.step_inputs import BeamStepper
from tightbeam.deploy.scheduling.queue import WaitingSamples
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.search import SearchCallback, new_search
from tightbeam.deploy.search.compaction import Compaction

__all__ = ["Batch", "JoiningBatch", "WholeBatch"]


class Batch:
    """Samples of one batch key that take their steps together.

    Parameters
    ----------
    decoding : Decoding
        The decoder's buffers.
    sample : Sample
        Any sample of the batch.
    callback : SearchCallback
        Receives results, by the samples' numbers.
    """

    def __init__(self, decoding: Decoding, sample: Sample, callback: SearchCallback) -> None:
        self.key, self.num_beams = sample.batch_key, sample.options.num_beams
        self.decoding = decoding
        self._stepper = BeamStepper(decoding, sample.options)
        self._search = new_search(self._stepper, sample.options, callback)

    def __len__(self) -> int:
        """Number of samples in the batch."""
        return len(self._search.places)

    def __contains__(self, number: int) -> bool:
        """True for the number of a sample in the batch."""
        return any(place.number == number for place in self._search.places)

    def certain(self, number: int, known: int) -> Ints:
        """Return what `BatchSearch.certain` returns."""
        return self._search.certain(number, known)

    def advance(self) -> None:
        """Run one step."""
        self._search.advance()

    def close(self) -> None:
        """Return the buffers to the runtime."""
        self.decoding.close()

    def _start(self, sample: Sample, keys: Array | None) -> None:
        """Start the search of a sample whose source has a place in the decoding.

        ``keys`` [A, N, K] are the keys of the alignment heads, if times of tokens are asked for.
        """
        self._stepper.join(sample.number, sample.first_length, sample.first_position)
        self._search.join(sample.number, sample.options, sample.prompt, sample.tokens)
        if keys is not None:
            self._search.align(keys)


class WholeBatch(Batch):
    """A batch that samples join only at its beginning, for a runtime that allocates buffers for each batch.

    Parameters
    ----------
    runtime : Runtime
    samples : sequence of Sample
        All samples of the batch, at least one.
    callback : SearchCallback
    """

    def __init__(self, runtime: Runtime, samples: Sequence[Sample], callback: SearchCallback) -> None:
        source, mask = padded(samples)
        first, history = samples[0].options, max(sample.options.max_length for sample in samples) - 1
        cached = max(sample.cached for sample in samples)
        P, groups = history + 1 - cached, first.candidate_groups
        shape = first.num_beams, cached, first.candidates, P, groups
        decoding = runtime.begin(source, mask, *shape, aligned=first.aligned)
        super().__init__(decoding, samples[0], callback)
        for index, sample in enumerate(samples):
            self._start(sample, None if decoding.alignment_keys is None else decoding.alignment_keys[index])


class JoiningBatch(Batch):
    """A batch that samples join between any two steps.

    Parameters
    ----------
    runtime : JoiningRuntime
    samples : sequence of Sample
        Samples to be encoded soon, among them the first one. The buffers are large enough for all of them.
    places : int
        The most samples that run together.
    callback : SearchCallback
    """

    def __init__(
        self, runtime: JoiningRuntime, samples: Sequence[Sample], places: int, callback: SearchCallback
    ) -> None:
        options = samples[0].options
        self._runtime = runtime
        self._places = min(places, runtime.most_samples)
        self._encoded: deque[tuple[Sample, Encoded, int]] = deque()
        self._joining: JoiningDecoding = runtime.open(
            self._places, options.num_beams, options.candidates, options.candidate_groups
        )
        self._joining.reserve(
            width=max(sample.width for sample in samples),
            positions=max(sample.cached for sample in samples),
            tokens=max(sample.options.max_length for sample in samples) - 1,
        )
        super().__init__(self._joining, samples[0], callback)

    @property
    def encoded(self) -> int:
        """Number of samples that are encoded and wait for a place."""
        return len(self._encoded)

    @property
    def next(self) -> Sample:
        """The encoded sample that gets the next place."""
        return self._encoded[0][0]

    def forget(self, number: int) -> bool:
        """Remove an encoded sample without a place. Returns False if none has this number."""
        found = next((entry for entry in self._encoded if entry[0].number == number), None)
        if found is not None:
            self._encoded.remove(found)
        return found is not None

    def fill(self, waiting: WaitingSamples, places: int, on_taken: Callable[[Sequence[Sample]], None]) -> None:
        """Let samples join while there are places. If no encoded sample waits, encode more: once if other samples run,
        otherwise until all places are taken.

        Parameters
        ----------
        waiting : WaitingSamples
        places : int
            The most samples that may join.
        on_taken : function
            Called with the samples that leave ``waiting``, before they are encoded.
        """
        encodes, empty, most = True, not len(self), min(self._places, len(self) + places)
        while len(self) < most:
            if self._encoded:
                self._join(*self._encoded.popleft())
            elif encodes and len(waiting) and waiting.oldest().batch_key == self.key:
                together = self._runtime.encoded_together
                samples = waiting.take(positions=together, samples=self._runtime.most_samples)
                on_taken(samples)
                self._encode(samples)
                encodes = empty
            else:
                return

    def advance(self) -> None:
        super().advance()
        if not len(self):  # the search does not remove the last samples
            left = len(self.decoding.inputs["lengths"])
            self._stepper.compact(Compaction.of(np.ones(left, np.bool_)))

    def _encode(self, samples: Sequence[Sample]) -> None:
        source, mask = padded(samples)
        into = self._joining.free_places(*mask.shape)
        aligned, kept = samples[0].options.aligned, samples[0].kept
        encoded = self._runtime.encode(source, mask, self.num_beams, into, aligned=aligned, kept=kept)
        self._encoded.extend((sample, encoded, index) for index, sample in enumerate(samples))

    def _join(self, sample: Sample, encoded: Encoded, index: int) -> None:
        self._joining.join(
            encoded, index, width=sample.width, positions=sample.cached, tokens=sample.options.max_length - 1
        )
        self._start(sample, encoded[ALIGNMENT_KEYS][index].copy() if sample.options.aligned else None)


def padded(samples: Sequence[Sample]) -> tuple[Array, Ints]:
    """Return sources [B, ...], padded on the right, and their mask int64 [B, N]."""
    widest = max(sample.width for sample in samples)
    mask = (np.arange(widest) < np.array([sample.positions for sample in samples])[:, None]).astype(np.int64)
    for row, sample in zip(mask, samples, strict=True):
        if sample.mask is not None:
            row[: len(sample.mask)] = sample.mask
    if samples[0].has_features:  # of one length: `WaitingSamples.take`
        return np.stack([sample.source for sample in samples]), mask
    return right_pad([sample.source for sample in samples])[0], mask
