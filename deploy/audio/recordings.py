"""Whole recordings in, text out: a speech model that takes recordings of any length, each of which is one sample.

Padding changes what these encoders make of a recording, in transformers too, so recordings of different lengths are
encoded one by one, and decoded together.
"""

from __future__ import annotations

import math
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.audio.files import Source, sound_blocks
from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.loaded_model import LoadedModel
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.search import SearchResult
from tightbeam.deploy.text.file_lines import FileLine
from tightbeam.deploy.text.input_result import InputResult
from tightbeam.deploy.text.run_inputs import OpenInput
from tightbeam.deploy.text.source_reader import SourceReader, run_sources
from tightbeam.deploy.text.token_ids import as_array, finite_float32

__all__ = ["Extractor", "RecordingModel", "Recordings", "WholeRecordingReader", "run_recordings"]

FILES_AHEAD = 4
"""Recordings that are read and wait."""


class Extractor(Protocol):
    """A feature extractor of whole recordings."""

    @property
    def sampling_rate_hz(self) -> int: ...
    @property
    def input(self) -> str:
        """The encoder's input."""
        ...

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Numbers of each sample or frame."""
        ...

    def samples_of(self, length: int) -> int:
        """Return the fewest samples that features of this length are made of."""
        ...

    def features(self, samples: Array) -> npt.NDArray[np.float32]:
        """Compute the features [X, ...] of a recording [n]. Raises InputError for one that has none."""
        ...

    def mask(self, attention_mask: Ints, positions: int, manifest: Manifest) -> Ints:
        """Return the mask int64 [B, N] over positions of a mask [B, X] over samples or frames."""
        ...


class Recordings:
    """The features of whole recordings, and the encoder's positions that they have.

    Parameters
    ----------
    extractor : Extractor
        The feature extractor.
    manifest : Manifest
        The bundle's, for its convolutions and its longest source.

    Attributes
    ----------
    sampling_rate_hz : int
        Samples a second.
    shortest, longest : int
        Samples of the shortest recording that has a position, and of the longest that is run whole.
    """

    def __init__(self, extractor: Extractor, manifest: Manifest) -> None:
        self._extractor, self._manifest = extractor, manifest
        self.sampling_rate_hz = extractor.sampling_rate_hz
        least, most = manifest.shortest_source(1), manifest.longest_source(manifest.sizes.max_source)
        self.shortest, self.longest = extractor.samples_of(least), extractor.samples_of(most + 1) - 1

    def features(self, samples: Array) -> npt.NDArray[np.float32]:
        """Compute the features of one recording.

        Parameters
        ----------
        samples : float32 [n]
            Samples in -1..1 at ``sampling_rate_hz``.

        Returns
        -------
        float32 [X, ...]
            Samples or frames, as the encoder takes them.

        Raises
        ------
        InputError
            The recording has none: it is silent, where features are normalised.
        """
        return self._extractor.features(samples)

    def parts(self, count: int) -> list[slice]:
        """Cut a recording of ``count`` samples that is too long into parts of one length, the last of which may be
        shorter. Raises InputError for one that is too short.
        """
        if count < self.shortest:
            raise InputError(
                f"the recording has {count} samples, expected {self.shortest} at least, "
                f"{1000 * self.shortest / self.sampling_rate_hz:.0f} ms"
            )
        number = -(-count // self.longest)
        length, longer = divmod(count, number)  # as numpy.array_split
        starts = [index * length + min(index, longer) for index in range(number + 1)]
        return [slice(*pair) for pair in pairwise(starts)]

    def positions(self, features: Array) -> int:
        """Return the encoder's positions of one recording's features."""
        return self._manifest.source_positions(len(features))

    def checked(self, features: Any, attention_mask: Any) -> tuple[Array, Ints]:
        """Check a batch as ``model.generate`` takes it.

        Parameters
        ----------
        features : float32 [B, X, ...]
            Samples or frames, padded on the right.
        attention_mask : integers [B, X], optional
            1 at samples or frames, 0 at padding.

        Returns
        -------
        features : float32 [B, X, ...]
        mask : int64 [B, N]
            Over the encoder's positions.

        Raises
        ------
        InputError
            A shape, type or value is wrong.
        """
        name, shape = self._extractor.input, self._extractor.row_shape
        batch = as_array(name, features)
        expected = ", ".join(map(str, ("B", "X", *shape)))
        if batch.ndim != 2 + len(shape) or batch.shape[2:] != shape or not batch.size:
            raise InputError(f"{name} is {list(batch.shape)}, expected [{expected}]; make it with Runner.recordings")
        batch = finite_float32(name, batch)
        N, most = self._manifest.source_positions(batch.shape[1]), self._manifest.sizes.max_source
        if not 1 <= N <= most:
            fewest, longest = self._manifest.shortest_source(1), self._manifest.longest_source(most)
            raise InputError(f"{name} is {list(batch.shape)}, expected X from {fewest} to {longest}")
        mask = np.ones(batch.shape[:2], np.int64)
        if attention_mask is not None:
            given = as_array("attention_mask", attention_mask)
            if given.shape != mask.shape or not np.isin(given, (0, 1)).all() or (np.diff(given.astype(int)) > 0).any():
                raise InputError(
                    f"attention_mask is {list(given.shape)}, or does not begin with ones and end with zeros; expected "
                    f"{list(mask.shape)} of them"
                )
            mask = given.astype(np.int64)
        by_position = self._extractor.mask(mask, N, self._manifest)
        if not by_position.any(axis=1).all():
            raise InputError("attention_mask leaves a row without a position; expected one at least")
        return batch, by_position


class RecordingModel(LoadedModel, Protocol):
    """A `LoadedModel` with its features of whole recordings, None for others."""

    recordings: Recordings | None

    def sample_of_recording(self, number: int, features: Array, settings: Mapping[str, Any]) -> Sample: ...


class WholeRecordingReader(SourceReader):
    """The reader of a speech model that takes whole recordings.

    Parameters
    ----------
    model
        The runner of such a model.
    settings
        Settings of ``model.generate``.
    numbers
        Numbers of the samples.
    most_s
        Seconds of a recording, at most.
    together
        Parts of one recording that have features at a time, at most.

    Raises
    ------
    GenerationError
        A setting is wrong.
    """

    def __init__(
        self,
        model: RecordingModel,
        settings: Mapping[str, Any],
        *,
        numbers: Iterator[int] | None = None,
        most_s: float = math.inf,
        together: int = 4,
    ) -> None:
        assert model.recordings is not None
        super().__init__(model.options(**settings).without_source_tokens("a recording"), numbers)
        self._model, self._settings, self._recordings = model, settings, model.recordings
        self._most_s, self._together = most_s, together

    def open(self, result: InputResult, source: str | bytes | Array) -> OpenInput:
        recordings = self._recordings
        blocks = sound_blocks(source, recordings.sampling_rate_hz, most_s=self._most_s, on_note=result.notes.append)
        samples = _KeptSamples(blocks, in_memory=recordings.longest)
        result.seconds = samples.count / recordings.sampling_rate_hz
        opened = _Parts(result, [])
        with _named(result.source):
            parts = recordings.parts(samples.count)
            opened.begin(len(parts), self._made(samples, parts), samples.close, self._together)
        if len(parts) > 1:
            result.returned = 1
            longest = recordings.longest / recordings.sampling_rate_hz
            result.notes.append(
                f"it is cut into {len(parts)} parts, since the model takes {longest:.0f} s; words at a cut may be lost"
            )
        return opened

    def _made(self, samples: _KeptSamples, parts: Iterable[slice]) -> Iterator[Sample]:
        """Make the samples of the parts of a recording, each when it is wanted. Raises InputError."""
        for part in parts:
            features = self._recordings.features(samples.read(part))
            yield self._model.sample_of_recording(next(self.numbers), features, self._settings)


@contextmanager
def _named(source: str | None) -> Iterator[None]:
    """Name the file in errors about a recording."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{source}: {error}" if source else str(error)) from None


class _KeptSamples:
    """The samples of a recording, on disk where there are many.

    Parameters
    ----------
    blocks : iterable of float32 arrays [n]
        Consecutive samples.
    in_memory : int
        The most samples that are kept in memory.

    Attributes
    ----------
    count : int
        Their number.
    close : function
        Frees them.
    """

    def __init__(self, blocks: Iterable[Array], in_memory: int) -> None:
        self._file = tempfile.SpooledTemporaryFile(4 * in_memory)  # noqa: SIM115  # closed with the recording
        self.close = weakref.finalize(self, self._file.close)
        self.count = 0
        for block in blocks:
            self._file.write(block.astype(np.float32, copy=False).tobytes())
            self.count += len(block)

    def read(self, part: slice) -> npt.NDArray[np.float32]:
        """Read consecutive samples float32 [n]."""
        self._file.seek(4 * part.start)
        return np.frombuffer(self._file.read(4 * (part.stop - part.start)), np.float32)


@dataclass(eq=False)
class _Parts(OpenInput):
    """A recording, some of whose parts have features at a time.

    Attributes
    ----------
    count : int
        Its parts.
    made : iterator of Sample
        Those of the parts that are not run yet.
    free : function
        Frees what they are made of.
    """

    count: int = 0
    made: Iterator[Sample] = field(default_factory=lambda: iter(()))
    free: Callable[[], object] = lambda: None

    def begin(self, count: int, made: Iterator[Sample], free: Callable[[], object], together: int) -> None:
        """Make the samples of the first ``together`` of ``count`` parts. Raises InputError."""
        self.count, self.made, self.free = count, made, free
        self.samples.extend(islice(made, together))

    @property
    def done(self) -> bool:
        return self.failure is not None or len(self.found) == self.count

    @property
    def is_one_sample(self) -> bool:
        return self.count == 1

    def take(self, number: int, result: SearchResult) -> list[Sample]:
        self.found[number] = result
        # The features of what is done are not needed any more.
        self.samples = [
            replace(sample, source=sample.source[:0].copy()) if sample.number == number else sample
            for sample in self.samples
        ]
        if self.failure is not None:
            return []
        try:
            with _named(self.result.source):
                more = list(islice(self.made, 1))
        except InputError as error:  # a part without sound
            self.failure = error
            return []
        self.samples += more
        return more

    def close(self) -> None:
        self.free()


def run_recordings(
    model: RecordingModel,
    sources: Iterable[Source | FileLine],
    *,
    batch_size: int = 8,
    typed: bool = False,
    **settings: Any,
) -> Iterator[OpenInput]:
    """Generate for whole recordings. Several run together, while the next ones are read.

    Parameters
    ----------
    model
        The runner of a speech model that takes whole recordings.
    sources
        Names of files, contents of files, samples, or an error in the place of one; or names with their own settings.
    batch_size
        Recordings in the running batch, at most.
    typed
        Names may come slowly, so that files that are there do not wait for others.
    **settings
        Settings of ``model.generate``.

    Yields
    ------
    OpenInput
        One for each recording, in order; one that cannot be transcribed has a ``failure``.

    Raises
    ------
    GenerationError
        A setting is wrong; raised before anything is read.
    """
    make = partial(WholeRecordingReader, model, together=batch_size)
    return run_sources(model, make, sources, settings, batch_size=batch_size, typed=typed, ahead=FILES_AHEAD)
