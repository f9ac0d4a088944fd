"""Whole recordings as inputs, for a speech model that takes recordings of any length. Each is one sample.

Padding changes the output of most of these encoders, in transformers too. So recordings of different lengths are
encoded one by one, and decoded together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.audio.stored_samples import StoredSamples
from tightbeam.deploy.audio.vad import RATE_HZ, SpeechDetector, check_rate, note_of_speech, speech_parts
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.vad import VadParameters
from tightbeam.deploy.inputs.file_lines import FileLine
from tightbeam.deploy.inputs.files.audio import Source, read_blocks
from tightbeam.deploy.inputs.files.sound_source import SoundSource
from tightbeam.deploy.inputs.open_input import OpenInput, PartedInput
from tightbeam.deploy.inputs.output import Output, TextSegment, join
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.inputs.run import finished
from tightbeam.deploy.inputs.sources import SourceReader, run_sources
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.scheduling.sample import Sample

__all__ = ["RecordingReader", "run_recordings"]

FILES_AHEAD = 4
"""Recordings that are read ahead."""
LEAST_SPEECH = RATE_HZ // 10
"""Samples of a part of the speech at least: some features are normalised, which needs several frames."""


class RecordingReader(SourceReader):
    """The reader of a speech model that takes whole recordings.

    Parameters
    ----------
    model
        A speech model that takes whole recordings.
    settings
        Settings of ``model.generate``.
    numbers
        Numbers of the samples.
    most_s
        The most seconds of a recording.
    together
        The most parts of one recording that have features at a time.

    Raises
    ------
    GenerationError
        A setting is wrong.
    """

    def __init__(
        self,
        model: Model,
        settings: Mapping[str, Any],
        *,
        numbers: Iterator[int] | None = None,
        most_s: float = math.inf,
        together: int = 4,
    ) -> None:
        assert model.recordings is not None
        super().__init__(model, settings, numbers, without_tokens="a recording")
        self._recordings, self._most_s, self._together = model.recordings, most_s, together

    def open(self, result: InputResult, source: str | bytes | Array | SoundSource) -> OpenInput:
        if self.options.vad is not None:
            return self._open_speech(result, source, self.options.vad)
        recordings = self._recordings
        blocks = read_blocks(source, recordings.sampling_rate_hz, most_s=self._most_s, on_note=result.notes.append)
        samples = StoredSamples(blocks, in_memory=recordings.longest)
        result.seconds = samples.count / recordings.sampling_rate_hz
        with _named(result.source):
            parts = recordings.parts(samples.count, samples.read)
            made = self._made(result, samples, parts)
            opened = PartedInput(result, [], count=len(parts), parts=made, free=samples.close).begin(self._together)
        if len(parts) > 1:
            result.returned = 1
            longest = recordings.longest / recordings.sampling_rate_hz
            result.notes.append(
                f"it is cut into {len(parts)} parts, since the model takes {longest:.0f} s; words at a cut may be lost"
            )
        return opened

    def _open_speech(
        self, result: InputResult, source: str | bytes | Array | SoundSource, how: VadParameters
    ) -> OpenInput:
        """Make the input of the speech in a recording, each part of which is transcribed by itself."""
        recordings, detector = self._recordings, SpeechDetector()
        check_rate(recordings.sampling_rate_hz)
        blocks = read_blocks(source, RATE_HZ, most_s=self._most_s, on_note=result.notes.append)
        samples = StoredSamples(detector.listen(blocks), in_memory=recordings.longest)
        found = speech_parts(detector.probabilities, samples.count, how.for_parts(recordings.longest / RATE_HZ))
        result.seconds, result.returned = samples.count / RATE_HZ, 1
        result.notes.append(note_of_speech(sum(part.stop - part.start for part in found), samples.count))
        with _named(result.source):
            parts = [each for part in found for each in self._within(samples, part)]
            made = self._made(result, samples, parts)
            opened = _SpeechInput(result, [], count=len(parts), parts=made, free=samples.close, spans=parts)
            opened.begin(self._together)
        return opened

    def _within(self, samples: StoredSamples, part: slice) -> list[slice]:
        """Return a part of the samples, cut where the model cannot take it whole, and no shorter than it takes."""
        missing = max(0, max(self._recordings.shortest, LEAST_SPEECH) - (part.stop - part.start))
        start = max(0, part.start - missing)
        stop = min(samples.count, part.stop + missing)
        cut = self._recordings.parts(stop - start, lambda own: samples.read(slice(own.start + start, own.stop + start)))
        return [slice(own.start + start, own.stop + start) for own in cut]

    def _made(self, result: InputResult, samples: StoredSamples, parts: Iterable[slice]) -> Iterator[Sample]:
        """Make the sample of each part of a recording on demand. Raises InputError."""
        for part in parts:
            with _named(result.source):
                features = self._recordings.features(samples.read(part))
            yield self.model.sample_of_recording(next(self.numbers), features, self.settings)


@dataclass(eq=False)
class _SpeechInput(PartedInput):
    """The speech in a recording: each part is a segment of the output.

    Attributes
    ----------
    spans : list of slice
        The samples of each part.
    """

    spans: list[slice] = field(default_factory=list)

    def output(self, model: Model) -> Output:
        parts = self.outputs(model)
        if not parts:  # nobody speaks
            return Output([[]], None, [""] if model.has_tokenizer else None, segments=[])
        segments = [
            TextSegment(
                round(span.start / RATE_HZ, 2),
                round(span.stop / RATE_HZ, 2),
                part.sequences[0],
                None if part.texts is None else part.texts[0].strip(),
            )
            for span, part in zip(self.spans, parts, strict=True)
        ]
        return replace(join(parts), segments=segments)


@contextmanager
def _named(source: str | None) -> Iterator[None]:
    """Name the file in errors about a recording."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{source}: {error}" if source else str(error)) from None


def run_recordings(
    model: Model,
    sources: Iterable[Source | FileLine],
    *,
    batch_size: int,
    settings: Mapping[str, Any],
    typed: bool = False,
) -> Iterator[OpenInput]:
    """Generate for whole recordings. Several run together while the next ones are read.

    Parameters
    ----------
    model
        A speech model that takes whole recordings.
    sources
        Names of files, contents of files, samples, errors in place of these, or names with their own settings.
    batch_size
        The most recordings in the running batch.
    settings
        Settings of ``model.generate``.
    typed
        Names may come slowly, so files that are there do not wait for others.

    Yields
    ------
    OpenInput
        One for each recording, in order. The input of a recording that cannot be transcribed has a ``failure``.

    Raises
    ------
    GenerationError
        A setting is wrong; raised before anything is read.
    """
    make = partial(RecordingReader, together=batch_size)
    return finished(run_sources(model, make, sources, settings, batch_size=batch_size, typed=typed, ahead=FILES_AHEAD))
