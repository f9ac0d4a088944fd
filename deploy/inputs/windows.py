"""Transcription by a speech model over windows: recordings in, text out.

A recording of one window is one sample. A longer one is transcribed window by window, by the timestamps that the model
predicts (`SequentialTranscription`). If there are no timestamps, it is cut into windows that are transcribed alone, and
a word at a cut may be lost.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.audio.segments import Segment
from tightbeam.deploy.audio.stored_features import StoredFeatures
from tightbeam.deploy.errors import Fix, GenerationError, InputError, Setting
from tightbeam.deploy.generation.recording import RecordingSettings, WindowStart
from tightbeam.deploy.generation.whisper import has_timestamps
from tightbeam.deploy.inputs.file_lines import FileLine
from tightbeam.deploy.inputs.files.audio import WHOLE, Clip, Source, cut, read_clips
from tightbeam.deploy.inputs.files.sound_source import SoundSource
from tightbeam.deploy.inputs.open_input import OpenInput
from tightbeam.deploy.inputs.output import Output, TextSegment, text_of
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.inputs.run import FoundSegments, FoundText, run_inputs
from tightbeam.deploy.inputs.sequential import SequentialTranscription
from tightbeam.deploy.inputs.sources import SourceReader, run_sources
from tightbeam.deploy.inputs.words import words_of
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.search import SearchResult

__all__ = ["WindowReader", "run_windows", "stream_segments"]

_Text = Callable[[Sequence[int]], str]
_Recording = str | bytes | Array | SoundSource

FILES_AHEAD = 2
"""Files that are read ahead."""


@dataclass(eq=False)
class _WindowedInput(OpenInput):
    """An input that is transcribed window by window: one recording, or the windows that it is cut into.

    Attributes
    ----------
    samples : list of Sample
        The samples without a result.
    parts : list of SequentialTranscription
        The recording or its windows, in order.
    features : list of StoredFeatures
        The features of the parts.
    numbers : iterator of int
        Numbers of further samples.
    on_transcribed : function
        Called with the seconds of each window that is done.
    """

    parts: list[SequentialTranscription] = field(default_factory=list)
    features: list[StoredFeatures] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    on_transcribed: Callable[[float], None] = lambda seconds: None
    _owners: dict[int, SequentialTranscription] = field(default_factory=dict)
    _readers: deque[_SegmentReader] = field(default_factory=deque)
    _segments: list[TextSegment] = field(default_factory=list)

    def start(self) -> None:
        """Make the first samples."""
        self._readers.extend(map(_SegmentReader, self.parts))
        for part in self.parts:
            self.on_transcribed(part.transcribed_s)  # of windows that are not run
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
        # Features and result are dropped, so that hours take no more memory than minutes.
        self.samples = [sample for sample in self.samples if sample.number != number]
        part = self._owners.pop(number)
        before = part.transcribed_s
        try:
            part.take(result)
            self.on_transcribed(part.transcribed_s - before)
        except (GenerationError, InputError) as error:  # a prompt that leaves no positions; sound that cannot be read
            self.failure = error
            return []
        return self._add(part)

    @property
    def is_one_sample(self) -> bool:
        return False

    def close(self) -> None:
        for recording in self.features:
            recording.close()

    def new_segments(self, model: Model) -> list[TextSegment]:
        found: list[TextSegment] = []
        while self._readers:
            found += self._readers[0].read(self._text(model))
            if not self._readers[0].part.done:  # segments of later parts come after it
                break
            self._readers.popleft()
        self._segments += found
        return found

    def output(self, model: Model) -> Output:
        tokens = [token for part in self.parts for segment in part.segments for token in segment.tokens]
        text = self._text(model)
        heard = next((part for part in self.parts if part.language is not None), None)
        self.new_segments(model)
        self.result.seconds = sum(recording.seconds for recording in self.features)  # of sound that came meanwhile, too
        return Output(
            sequences=[tokens],
            scores=None,
            texts=None if text is None else [text(tokens).strip()],
            new_tokens=len(tokens),
            segments=self._segments,
            language=None if heard is None else heard.language,
            language_probability=None if heard is None else heard.language_probability,
            finish_reasons=None if (reason := self.parts[-1].finish_reason) is None else [reason],
        )

    def _text(self, model: Model) -> _Text | None:
        """Return the function that makes text of tokens; None without a tokenizer."""
        return (lambda tokens: text_of(model, list(tokens))) if model.has_tokenizer else None


class _SegmentReader:
    """Reads the segments of a part of a recording as text, each once."""

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


@dataclass(frozen=True)
class _Part:
    """A part of a recording: its beginning in seconds of the recording, and its features."""

    begin_s: float
    sound: StoredFeatures


class WindowReader(SourceReader):
    """The reader of a speech model that takes windows.

    Parameters
    ----------
    model
        A speech model over windows.
    settings
        Settings of ``model.generate``.
    on_transcribed
        Called with seconds of audio as they are transcribed by timestamps.
    on_read
        Called with the seconds of a recording when it is read.
    numbers
        Numbers of the samples.
    most_s
        The most seconds of a recording.

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
        on_transcribed: Callable[[float], None] = lambda seconds: None,
        on_read: Callable[[float], None] = lambda seconds: None,
        numbers: Iterator[int] | None = None,
        most_s: float = math.inf,
    ) -> None:
        self._log_mel = model.require_windows()
        super().__init__(model, settings, numbers)
        self._on_transcribed, self._on_read, self._most_s = on_transcribed, on_read, most_s
        assert self.options.recording is not None
        self._how: RecordingSettings = self.options.recording
        model.settings.window_options(settings, WindowStart(self._how.prompt_ids))
        self._obstacle = ""  # the reason why a long recording is not transcribed by timestamps
        self._by_timestamps = self._how.return_timestamps is True
        if self._how.return_timestamps is None and has_timestamps(model.manifest.generation, self.options.vocab_size):
            try:
                model.settings.window_options({**settings, "return_timestamps": True}, WindowStart())
                self._by_timestamps = True
            except GenerationError as error:
                self._obstacle = str(error)

    def open(self, result: InputResult, source: _Recording) -> OpenInput:
        log_mel, parts, is_cut = self._log_mel, list[_Part](), False
        if len(self._how.clip_timestamps) * log_mel.chunk_s > self._most_s:  # each takes a window at least
            most = int(self._most_s / log_mel.chunk_s)
            raise InputError(f"clip_timestamps has more than {most} clips; pass them in several requests")
        for (begin_s, _), blocks in self._clips(source, result.notes):
            live = isinstance(source, SoundSource) and source.stream is not None and len(self._how.clip_timestamps) < 2
            own = self._parts(blocks, begin_s, live=live)
            is_cut |= len(own) > 1
            parts += own
        parts[0].sound.reach(
            log_mel.frames + 1
        )  # of sound that is still coming, so much tells whether it is one window
        result.seconds = sum(part.sound.seconds for part in parts)
        self._on_read(result.seconds)
        longest = max(part.sound.frames for part in parts)
        timestamps = self._by_timestamps and (self._how.return_timestamps is True or longest > log_mel.frames)
        if self._obstacle and is_cut:
            note = f"it is cut into windows of {log_mel.chunk_s} s, and words at a cut may be lost"
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
            window = part.sound.window(0, part.sound.frames)
            made.append(self.model.sample_of_features(next(self.numbers), window, self.settings))
            part.sound.close()
        return OpenInput(result, made)

    def _clips(self, source: _Recording, notes: list[str]) -> Iterator[tuple[Clip, Iterator[Array]]]:
        """Yield the clips that are asked for, or the whole recording, with their blocks."""
        clips = self._how.clip_timestamps or (WHOLE,)
        how: dict[str, Any] = {"most_s": self._most_s, "on_note": notes.append}
        read = read_clips(source, self._log_mel.sampling_rate_hz, clips, **how)
        if len(clips) == 1:  # which is read on demand, if it is a stream
            yield clips[0], chain.from_iterable(read)
            return
        for place, blocks in enumerate(read):
            yield clips[place], blocks

    def _parts(self, blocks: Iterator[Array], begin_s: float, *, live: bool) -> list[_Part]:
        """Return a clip as it is, or its windows if it is long and not transcribed by timestamps."""
        log_mel = self._log_mel
        if self._by_timestamps:
            return [_Part(begin_s, StoredFeatures(log_mel, blocks, live=live))]
        parts = cut(blocks, log_mel.samples)
        first = next(parts)
        second = next(parts, first[:0])
        if len(second) < log_mel.hop:  # too short for another frame
            return [_Part(begin_s, StoredFeatures(log_mel, [np.concatenate([first, second])]))]
        windows = enumerate(chain([first, second], parts))
        return [_Part(begin_s + place * log_mel.chunk_s, StoredFeatures(log_mel, [own])) for place, own in windows]

    def _in_sequence(self, result: InputResult, parts: list[_Part], *, timestamps: bool) -> OpenInput:
        sounds = [part.sound for part in parts]
        each = [
            SequentialTranscription(self.model, own.sound, self.settings, timestamps=timestamps, begin_s=own.begin_s)
            for own in parts
        ]
        made = _WindowedInput(result, [], parts=each, features=sounds, numbers=self.numbers)
        made.on_transcribed = self._on_transcribed
        made.start()
        return made


def run_windows(
    model: Model,
    sources: Iterable[Source | FileLine],
    *,
    batch_size: int,
    settings: Mapping[str, Any],
    typed: bool = False,
    stream: bool = False,
    on_transcribed: Callable[[float], None] = lambda seconds: None,
    on_read: Callable[[float], None] = lambda seconds: None,
) -> Iterator[OpenInput | FoundSegments | FoundText]:
    """Transcribe recordings. Windows of several recordings run together while the next ones are read.

    Parameters
    ----------
    model
        A speech model over windows.
    sources
        Names of files, contents of files, samples, errors in place of these, or names with their own settings.
    batch_size
        The most windows in the running batch.
    settings
        Settings of ``model.generate``.
    typed
        Names may come slowly, so files that are there do not wait for others.
    stream
        Give the text of each recording in pieces, too.
    on_transcribed
        Called with seconds of audio as they are transcribed by timestamps.
    on_read
        Called with the seconds of each recording when it is read, in the thread that reads.

    Yields
    ------
    OpenInput, FoundSegments or FoundText
        The items of `run_inputs`. The input of a recording that cannot be transcribed has a ``failure``.

    Raises
    ------
    GenerationError
        A setting is wrong; raised before anything is read.
    """
    make = partial(WindowReader, on_transcribed=on_transcribed, on_read=on_read)
    how: dict[str, Any] = {"batch_size": batch_size, "typed": typed, "ahead": FILES_AHEAD, "stream": stream}
    return run_sources(model, make, sources, settings, most_open=batch_size + FILES_AHEAD, **how)


def stream_segments(
    model: Model, source: str | bytes | Array, *, batch_size: int, settings: Mapping[str, Any]
) -> Iterator[TextSegment]:
    """Transcribe one recording by timestamps.

    Parameters
    ----------
    model
        A speech model over windows.
    source
        The recording, which is read before this returns.
    batch_size
        The most windows in the running batch.
    settings
        Settings of ``model.generate``.

    Returns
    -------
    iterator of TextSegment
        The segments of each window, as soon as it is done. A caller that stops early closes or drops the iterator.

    Raises
    ------
    GenerationError, InputError
        A setting is wrong, or the recording cannot be read.
    """
    reader = WindowReader(model, settings)
    opened = reader.read(1, source)
    if opened.failure is not None:
        raise opened.failure
    return _segments_of(run_inputs(model, [opened], max_rows=batch_size * reader.options.num_beams))


def _segments_of(items: Iterator[OpenInput | FoundSegments | FoundText]) -> Iterator[TextSegment]:
    for item in items:
        if isinstance(item, FoundSegments):
            yield from item.segments
        elif isinstance(item, OpenInput) and item.failure is not None:
            raise item.failure
