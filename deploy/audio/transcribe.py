"""Transcription: recordings in, text out.

A recording of one window is one sample. A longer one is gone through by the timestamps that the model predicts
(`SequentialTranscription`); where it makes none, or is asked for none, it is cut into windows, each of which is
transcribed alone, so that a word at a cut may be lost.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from typing import Any, Protocol

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.audio.features import LogMel
from tightbeam.deploy.audio.files import Source, cut, read_audio, sound_blocks, windows
from tightbeam.deploy.audio.recording import Recording
from tightbeam.deploy.audio.segments import Segment
from tightbeam.deploy.audio.sequential import SequentialTranscription
from tightbeam.deploy.audio.words import words_of
from tightbeam.deploy.errors import Fix, GenerationError, InputError, Setting
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.recording import RecordingSettings, WindowStart
from tightbeam.deploy.generation.whisper import has_timestamps
from tightbeam.deploy.loaded_model import LoadedModel
from tightbeam.deploy.scheduling.groups import GroupScheduler
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.scheduling.scheduler import FailedSample
from tightbeam.deploy.search import SearchResult
from tightbeam.deploy.text.file_lines import FileLine
from tightbeam.deploy.text.input_result import InputResult
from tightbeam.deploy.text.output import Output, TextSegment, join, output_of, text_of
from tightbeam.deploy.text.run_inputs import OnSegments, OpenInput
from tightbeam.deploy.text.source_reader import SourceReader, run_sources

__all__ = [
    "RecordingReader",
    "SpeechModel",
    "read_features",
    "stream_segments",
    "transcribe",
    "transcribe_files",
]

_Text = Callable[[Sequence[int]], str]

FILES_AHEAD = 2
"""Files that are read and wait."""


class SpeechModel(LoadedModel, Protocol):
    """A `LoadedModel` with its feature extractor, None for a text model."""

    log_mel: LogMel | None

    def sample_of_features(self, number: int, features: Array, settings: Mapping[str, Any]) -> Sample: ...
    def window_options(self, settings: Mapping[str, Any], window: WindowStart) -> GenerationOptions: ...


def _log_mel(model: SpeechModel) -> LogMel:
    if model.log_mel is None:
        raise InputError("this is a text model; pass text or token ids instead of audio")
    return model.log_mel


def read_features(model: SpeechModel, path: str) -> Array:
    """Read an audio file as features float32 [windows, mels, frames]. Raises InputError where it cannot be read."""
    log_mel = _log_mel(model)
    samples = read_audio(path, log_mel.sampling_rate_hz)
    return np.stack([log_mel.features(window) for window in windows(samples, log_mel.samples)])


def transcribe(model: SpeechModel, features: Array, *, batch_size: int = 8, **settings: Any) -> Output:
    """Generate for the windows of one file, each alone, and join their outputs.

    Parameters
    ----------
    model
        The runner of a speech model.
    features
        The windows' features float32 [windows, mels, frames].
    batch_size
        Windows in the running batch, at most.
    **settings
        Settings of ``model.generate``.
    """
    scheduler = model.scheduler(min(batch_size, len(features)))  # on a GPU every place takes every step
    samples = [model.sample_of_features(number, window, settings) for number, window in enumerate(features)]
    found = scheduler.run(samples)
    return join([output_of(model, found[sample.number], sample.options) for sample in samples])


@dataclass(eq=False)
class _Recordings(OpenInput):
    """An input that is gone through window by window: one recording, or the windows that it is cut into.

    Attributes
    ----------
    samples : list of Sample
        Those without a result.
    parts : list of SequentialTranscription
        What it is made of, in order.
    recordings : list of Recording
        Their features.
    numbers : iterator of int
        Numbers of further samples.
    on_heard : function
        Receives the seconds of each window that is done.
    """

    parts: list[SequentialTranscription] = field(default_factory=list)
    recordings: list[Recording] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    on_heard: Callable[[float], None] = lambda seconds: None
    _owners: dict[int, SequentialTranscription] = field(default_factory=dict)
    _readers: deque[_SegmentReader] = field(default_factory=deque)
    _segments: list[TextSegment] = field(default_factory=list)

    def start(self) -> None:
        """Make the first samples."""
        self._readers.extend(map(_SegmentReader, self.parts))
        for part in self.parts:
            self.on_heard(part.heard_s)  # of windows that are not run
            self._add(part)

    def _add(self, part: SequentialTranscription) -> list[Sample]:
        if part.done:
            return []
        sample = part.sample(next(self.numbers))
        self._owners[sample.number] = part
        self.samples.append(sample)
        return [sample]

    @property
    def done(self) -> bool:
        return self.failure is not None or not self._owners

    def take(self, number: int, result: SearchResult) -> list[Sample]:
        # Neither the features nor the result are needed any more: hours take no more memory than minutes.
        self.samples = [sample for sample in self.samples if sample.number != number]
        part = self._owners.pop(number)
        before = part.heard_s
        try:
            part.take(result)
            self.on_heard(part.heard_s - before)
        except GenerationError as error:  # a prompt that leaves no positions
            self.failure = error
            return []
        return self._add(part)

    @property
    def is_one_sample(self) -> bool:
        return False

    def close(self) -> None:
        for recording in self.recordings:
            recording.close()

    def new_segments(self, model: LoadedModel) -> list[TextSegment]:
        found: list[TextSegment] = []
        while self._readers:
            found += self._readers[0].read(self._text(model))
            if not self._readers[0].part.done:  # those of later parts come behind it
                break
            self._readers.popleft()
        self._segments += found
        return found

    def output(self, model: LoadedModel) -> Output:
        tokens = [token for part in self.parts for segment in part.segments for token in segment.tokens]
        text = self._text(model)
        self.new_segments(model)
        return Output(
            sequences=[tokens],
            scores=None,
            texts=None if text is None else [text(tokens).strip()],
            new_tokens=len(tokens),
            segments=self._segments,
        )

    def _text(self, model: LoadedModel) -> _Text | None:
        """The function that makes text of tokens; None without a tokenizer."""
        return (lambda tokens: text_of(model, list(tokens))) if model.has_tokenizer else None


class _SegmentReader:
    """Reads the segments of a part of a recording as text, each once, as they are found."""

    def __init__(self, part: SequentialTranscription) -> None:
        self.part = part
        self._read, self._before_s = 0, part.begin_s

    def read(self, text: _Text | None) -> list[TextSegment]:
        """Return the segments that were found since the last call."""
        new = self.part.segments[self._read :]
        self._read += len(new)
        return [self._as_text(segment, text) for segment in new]

    def _as_text(self, segment: Segment, text: _Text | None) -> TextSegment:
        begin_s, times, words = self.part.begin_s, segment.times, None
        if times is not None:
            times = tuple(replace(own, end_s=own.end_s + begin_s) for own in times)
            words = None if text is None else words_of(times, self._before_s, text, self.part.language)
            self._before_s = times[-1].end_s if times else self._before_s
        return TextSegment(
            segment.start_s + begin_s,
            segment.end_s + begin_s,
            list(segment.tokens),
            None if text is None else text(segment.tokens).strip(),
            None if times is None else [round(own.end_s, 2) for own in times],
            words,
        )


class RecordingReader(SourceReader):
    """The reader of a speech model that takes windows.

    Parameters
    ----------
    model
        The runner of such a model.
    settings
        Settings of ``model.generate``.
    on_heard
        Receives the seconds of sound that are done, as recordings are gone through by timestamps.
    numbers
        Numbers of the samples.
    most_s
        Seconds of a recording, at most.

    Raises
    ------
    GenerationError
        A setting is wrong.
    """

    def __init__(
        self,
        model: SpeechModel,
        settings: Mapping[str, Any],
        *,
        on_heard: Callable[[float], None] = lambda seconds: None,
        numbers: Iterator[int] | None = None,
        most_s: float = math.inf,
    ) -> None:
        self._log_mel = _log_mel(model)
        super().__init__(model.options(**settings), numbers)
        self._model, self._settings, self._on_heard, self._most_s = model, settings, on_heard, most_s
        assert self.options.recording is not None
        self._how: RecordingSettings = self.options.recording
        model.window_options(settings, WindowStart(self._how.prompt_ids))
        self._obstacle = ""  # that keeps a long recording from being gone through by timestamps
        self._by_timestamps = self._how.return_timestamps is True
        if self._how.return_timestamps is None and has_timestamps(model.manifest.generation, self.options.vocab_size):
            try:
                model.window_options({**settings, "return_timestamps": True}, WindowStart())
                self._by_timestamps = True
            except GenerationError as error:
                self._obstacle = str(error)

    def open(self, result: InputResult, source: str | bytes | Array) -> OpenInput:
        log_mel, parts = self._log_mel, self._parts(source, result.notes)
        result.seconds = sum(part.seconds for part in parts)
        timestamps = self._by_timestamps and (self._how.return_timestamps is True or parts[0].frames > log_mel.frames)
        if self._obstacle and len(parts) > 1:
            note = f"it is cut into windows of {log_mel.chunk_s} s, where words may be lost"
            result.notes.append(f"{note}: {self._obstacle}")
        in_sequence = timestamps or bool(self._how.asked) or self.options.aligned
        if in_sequence and self.options.scoring is not None and not self.options.aligned:
            asked = self.options.scoring.asked
            if self._how.asked:
                raise InputError(f"{asked} does not go with {self._how.asked}; leave one of them out")
            fix = Fix("leave it out, or pass {}", Setting("return_timestamps", False))
            raise InputError(f"{asked} is for recordings of one window, not by timestamps", fix=fix)
        if in_sequence:
            return self._in_sequence(result, parts, timestamps=timestamps)
        made = []
        for part in parts:
            window = part.window(0, part.frames)
            made.append(self._model.sample_of_features(next(self.numbers), window, self._settings))
            part.close()
        return OpenInput(result, made)

    def _parts(self, source: str | bytes | Array, notes: list[str]) -> list[Recording]:
        """A recording whole, or the windows that it is cut into where it is long and not gone through by timestamps."""
        log_mel = self._log_mel
        blocks = sound_blocks(source, log_mel.sampling_rate_hz, most_s=self._most_s, on_note=notes.append)
        if self._by_timestamps:
            return [Recording(log_mel, blocks)]
        parts = cut(blocks, log_mel.samples)
        first = next(parts)
        second = next(parts, first[:0])
        if len(second) < log_mel.hop:  # too short for another frame
            return [Recording(log_mel, [np.concatenate([first, second])])]
        return [Recording(log_mel, [part]) for part in chain([first, second], parts)]

    def _in_sequence(self, result: InputResult, recordings: list[Recording], *, timestamps: bool) -> OpenInput:
        window_s = self._log_mel.chunk_s
        parts = [
            SequentialTranscription(self._model, own, self._settings, timestamps=timestamps, begin_s=index * window_s)
            for index, own in enumerate(recordings)
        ]
        made = _Recordings(result, [], parts=parts, recordings=recordings, numbers=self.numbers)
        made.on_heard = self._on_heard
        made.start()
        return made


def transcribe_files(
    model: SpeechModel,
    sources: Iterable[Source | FileLine],
    *,
    batch_size: int = 8,
    typed: bool = False,
    on_heard: Callable[[float], None] = lambda seconds: None,
    on_segments: OnSegments | None = None,
    **settings: Any,
) -> Iterator[OpenInput]:
    """Transcribe recordings. Windows of several recordings run together, while the next ones are read.

    Parameters
    ----------
    model
        The runner of a speech model.
    sources
        Names of files, contents of files, samples, or an error in the place of one; or names with their own settings.
    batch_size
        Windows in the running batch, at most.
    typed
        Names may come slowly, so that files that are there do not wait for others.
    on_heard
        Receives the seconds of sound that are done, as recordings are gone through by timestamps.
    on_segments
        Receives the segments of such a recording as its windows are done, recording by recording.
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
    most_open, make = batch_size + FILES_AHEAD, partial(RecordingReader, model, on_heard=on_heard)
    how: dict[str, Any] = {"typed": typed, "ahead": FILES_AHEAD, "most_open": most_open, "on_segments": on_segments}
    return run_sources(model, make, sources, settings, batch_size=batch_size, **how)


def stream_segments(model: SpeechModel, opened: OpenInput, scheduler: GroupScheduler) -> Iterator[TextSegment]:
    """Yield the segments of a recording, those of a window as soon as it is done.

    Parameters
    ----------
    model
        The runner of a speech model.
    opened
        The recording, which a `RecordingReader` has read.
    scheduler
        A scheduler without samples, which is closed at the end, as the recording is.
    """
    try:
        for sample in opened.samples:
            scheduler.add(sample)
        while not opened.done:
            for ended in scheduler.turn():
                if isinstance(ended, FailedSample):
                    raise ended.error
                for sample in opened.take(ended.number, ended.result):
                    scheduler.add(sample)
            if opened.failure is not None:
                raise opened.failure
            yield from opened.new_segments(model)
    finally:
        scheduler.close()
        opened.close()
