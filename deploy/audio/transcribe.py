"""Transcription: recordings in, text out.

A recording of one window is one sample. A longer one is gone through by the timestamps that the model predicts
(`SequentialTranscription`); where it makes none, or is asked for none, it is cut into windows, each of which is
transcribed alone, so that a word at a cut may be lost.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any, Protocol

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.audio.features import LogMel
from tightbeam.deploy.audio.files import Source, cut, read_audio, sound_blocks, windows
from tightbeam.deploy.audio.recording import Recording
from tightbeam.deploy.audio.sequential import SequentialTranscription
from tightbeam.deploy.audio.words import words_of
from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.recording import RecordingSettings, WindowStart
from tightbeam.deploy.generation.whisper import has_timestamps
from tightbeam.deploy.loaded_model import LoadedModel
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.search import SearchResult
from tightbeam.deploy.text.file_lines import FileLine, LineReader
from tightbeam.deploy.text.input_result import InputResult
from tightbeam.deploy.text.output import Output, TextSegment, join, output_of, text_of
from tightbeam.deploy.text.run_inputs import OpenInput, run_inputs

__all__ = ["RecordingReader", "SpeechModel", "named_files", "read_features", "transcribe", "transcribe_files"]

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

    def start(self) -> None:
        """Make the first samples."""
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

    def take(self, number: int, result: SearchResult) -> list[Sample]:
        super().take(number, result)
        part = self._owners.pop(number)
        before = part.heard_s
        try:
            part.take(result)
            self.on_heard(part.heard_s - before)
        except GenerationError as error:  # a prompt that leaves no positions
            self.failure = InputError(str(error))
            return []
        return self._add(part)

    @property
    def is_one_sample(self) -> bool:
        return False

    def close(self) -> None:
        for recording in self.recordings:
            recording.close()

    def output(self, model: LoadedModel) -> Output:
        options = self.parts[0].options
        tokens = [token for part in self.parts for segment in part.segments for token in segment.tokens]

        def text(of: Iterable[int]) -> str:
            return text_of(model, list(of), options)

        text_or_none = text if model.has_tokenizer else None
        segments = [own for part in self.parts for own in _text_segments(part, text_or_none)]
        return Output(
            sequences=[tokens],
            scores=None,
            texts=[text(tokens).strip()] if model.has_tokenizer else None,
            new_tokens=len(tokens),
            segments=segments,
        )


def _text_segments(part: SequentialTranscription, text: Callable[[Iterable[int]], str] | None) -> Iterator[TextSegment]:
    """The segments of a part of a recording; ``text`` makes text of tokens, None without a tokenizer."""
    begin_s = before_s = part.begin_s
    for segment in part.segments:
        times, words = segment.times, None
        if times is not None:
            times = tuple(replace(own, end_s=own.end_s + begin_s) for own in times)
            words = None if text is None else words_of(times, before_s, text, part.language)
            before_s = times[-1].end_s if times else before_s
        yield TextSegment(
            segment.start_s + begin_s,
            segment.end_s + begin_s,
            list(segment.tokens),
            None if text is None else text(segment.tokens).strip(),
            None if times is None else [round(own.end_s, 2) for own in times],
            words,
        )


class RecordingReader:
    """Reads sources as inputs.

    Parameters
    ----------
    model
        The runner of a speech model.
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
        self._model, self._settings, self._on_heard, self._most_s = model, settings, on_heard, most_s
        _log_mel(model)
        self.options = model.options(**settings)
        assert self.options.recording is not None
        self._how: RecordingSettings = self.options.recording
        model.window_options(settings, WindowStart(self._how.prompt_ids))
        self._numbers = count() if numbers is None else numbers
        self._obstacle = ""  # that keeps a long recording from being gone through by timestamps
        self._by_timestamps = self._how.return_timestamps is True
        if self._how.return_timestamps is None and has_timestamps(model.manifest.generation, self.options.vocab_size):
            try:
                model.window_options({**settings, "return_timestamps": True}, WindowStart())
                self._by_timestamps = True
            except GenerationError as error:
                self._obstacle = str(error)

    def read(self, number: int, source: Source) -> OpenInput:
        """Read a source: an input, with its failure where it cannot be read."""
        named = source if isinstance(source, str) else None
        result, log_mel = InputResult(number, source=named), _log_mel(self._model)
        try:
            if isinstance(source, InputError):
                raise source
            parts = self._parts(source, log_mel)
        except InputError as error:
            return OpenInput(result, [], error)
        result.seconds = sum(part.seconds for part in parts)
        timestamps = self._by_timestamps and (self._how.return_timestamps is True or parts[0].frames > log_mel.frames)
        if self._obstacle and len(parts) > 1:
            note = f"it is cut into windows of {log_mel.chunk_s} s, where words may be lost"
            result.notes.append(f"{note}: {self._obstacle}")
        in_sequence = timestamps or bool(self._how.asked) or self.options.aligned
        if in_sequence and self.options.scoring is not None and not self.options.aligned:
            fix = "leave it out, or pass return_timestamps=False"
            asked = self.options.scoring.asked
            return OpenInput(
                result, [], InputError(f"{asked} is for recordings of one window, not by timestamps; {fix}")
            )
        if in_sequence:
            return self._in_sequence(result, parts, timestamps=timestamps)
        made = []
        for part in parts:
            window = part.window(0, part.frames)
            made.append(self._model.sample_of_features(next(self._numbers), window, self._settings))
            part.close()
        return OpenInput(result, made)

    def _parts(self, source: str | bytes | Array, log_mel: LogMel) -> list[Recording]:
        """A recording whole, or the windows that it is cut into where it is long and not gone through by timestamps."""
        blocks = sound_blocks(source, log_mel.sampling_rate_hz, most_s=self._most_s)
        if self._by_timestamps:
            return [Recording(log_mel, blocks)]
        parts = cut(blocks, log_mel.samples)
        first = next(parts)
        second = next(parts, first[:0])
        if len(second) < log_mel.hop:  # too short for another frame
            return [Recording(log_mel, [np.concatenate([first, second])])]
        return [Recording(log_mel, [part]) for part in chain([first, second], parts)]

    def _in_sequence(self, result: InputResult, recordings: list[Recording], *, timestamps: bool) -> OpenInput:
        window_s = _log_mel(self._model).chunk_s
        parts = [
            SequentialTranscription(self._model, own, self._settings, timestamps=timestamps, begin_s=index * window_s)
            for index, own in enumerate(recordings)
        ]
        made = _Recordings(result, [], parts=parts, recordings=recordings, numbers=self._numbers)
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
    numbers = count()

    def make(given: Mapping[str, Any]) -> RecordingReader:
        return RecordingReader(model, given, on_heard=on_heard, numbers=numbers)

    reader = LineReader(make, settings, batch_size, windows=True)
    inputs = (reader.read(number, source) for number, source in enumerate(sources, start=1))
    yield from run_inputs(
        model, inputs, max_rows=reader.max_rows, typed=typed, ahead=FILES_AHEAD, most_open=batch_size + FILES_AHEAD
    )


def named_files(lines: Iterable[bytes], kind: str = "an audio file") -> Iterator[str | InputError]:
    """The file names in lines of UTF-8, or an error in the place of one."""
    for number, line in enumerate(lines):
        name = (line.removeprefix(codecs.BOM_UTF8) if not number else line).rstrip(b"\r\n")
        try:
            yield name.decode()
        except UnicodeDecodeError:
            yield InputError(f"{line!r} is not UTF-8; expected the name of {kind}")
