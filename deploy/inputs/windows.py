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
from tightbeam.deploy.audio.joined_times import JoinedTimes
from tightbeam.deploy.audio.segments import Segment
from tightbeam.deploy.audio.stored_features import StoredFeatures
from tightbeam.deploy.audio.stored_samples import StoredSamples
from tightbeam.deploy.audio.vad import RATE_HZ, SpeechDetector, check_rate, note_of_speech, speech_parts
from tightbeam.deploy.errors import Fix, GenerationError, InputError, Setting
from tightbeam.deploy.generation.recording import RecordingSettings, WindowStart
from tightbeam.deploy.generation.vad import VadParameters
from tightbeam.deploy.generation.whisper import has_timestamps
from tightbeam.deploy.inputs.file_lines import FileLine
from tightbeam.deploy.inputs.files.audio import BLOCK, WHOLE, Clip, Source, cut, read_clips
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

PARTS_TOGETHER = 16
"""The most parts of the speech in a recording that have features at a time."""
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
    numbers : iterator of int
        Numbers of further samples.
    rest : iterator, optional
        Further parts, which are made when others are done. They begin once the language is found.
    silence_s : float
        Seconds of the recording in none of the parts.
    on_transcribed : function
        Called with the seconds of each window that is done.
    """

    parts: list[SequentialTranscription] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    rest: Iterator[SequentialTranscription] | None = None
    silence_s: float = 0.0
    on_transcribed: Callable[[float], None] = lambda seconds: None
    _owners: dict[int, SequentialTranscription] = field(default_factory=dict)
    _readers: deque[_SegmentReader] = field(default_factory=deque)
    _segments: list[TextSegment] = field(default_factory=list)

    def start(self) -> None:
        """Make the first samples."""
        self.on_transcribed(self.silence_s)
        for part in self.parts:
            self._begin(part)
        self._begin_rest()

    def _begin(self, part: SequentialTranscription) -> list[Sample]:
        self._readers.append(_SegmentReader(part))
        self.on_transcribed(part.transcribed_s)  # of windows that are not run
        return self._add(part)

    def _begin_rest(self) -> list[Sample]:
        """Begin further parts, as many as run together."""
        made: list[Sample] = []
        while self.rest is not None and len(self._owners) < PARTS_TOGETHER:
            if any(part.finds_language for part in self._owners.values()):
                break
            found = next(self.rest, None)
            if found is None:
                self.rest = None
                break
            self.parts.append(found)
            made += self._begin(found)
        return made

    def _add(self, part: SequentialTranscription) -> list[Sample]:
        if part.done:
            part.close()
            return []
        sample = part.sample(next(self.numbers))
        self._owners[sample.number] = part
        self.samples.append(sample)
        return [sample]

    @property
    def done(self) -> bool:
        return self.failure is not None or (not self._owners and self.rest is None)

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
        return self._add(part) + self._begin_rest()

    @property
    def is_one_sample(self) -> bool:
        return False

    def close(self) -> None:
        for part in self.parts:
            part.close()

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
        self.result.seconds = self.silence_s + sum(part.seconds for part in self.parts)  # what came meanwhile, too
        return Output(
            sequences=[tokens],
            scores=None,
            texts=None if text is None else [text(tokens).strip()],
            new_tokens=len(tokens),
            segments=self._segments,
            language=None if heard is None else heard.language,
            language_probability=None if heard is None else heard.language_probability,
            finish_reasons=[reason] if self.parts and (reason := self.parts[-1].finish_reason) is not None else None,
        )

    def _text(self, model: Model) -> _Text | None:
        """Return the function that makes text of tokens; None without a tokenizer."""
        return (lambda tokens: text_of(model, list(tokens))) if model.has_tokenizer else None


class _SegmentReader:
    """Reads the segments of a part of a recording as text, each once."""

    def __init__(self, part: SequentialTranscription) -> None:
        self.part = part
        self._read, self._before_s = 0, 0.0

    def read(self, text: _Text | None) -> list[TextSegment]:
        """Return the segments that were found since the last call."""
        new = self.part.segments[self._read :]
        self._read += len(new)
        return [self._as_text(segment, text) for segment in new]

    def _as_text(self, segment: Segment, text: _Text | None) -> TextSegment:
        where, times, words, ends_s = self.part.times, segment.times, None, None
        if times is not None:
            if text is not None:
                found = words_of(times, self._before_s, text, self.part.language)
                spans = [where.word(word.start_s, word.end_s) for word in found]
                words = [
                    replace(word, start_s=round(start_s, 2), end_s=round(end_s, 2))
                    for word, (start_s, end_s) in zip(found, spans, strict=True)
                ]
            ends_s = [round(where.word(own.end_s, own.end_s)[1], 2) for own in times]
            self._before_s = times[-1].end_s if times else self._before_s
        start_s, end_s = where.span(segment.start_s, segment.end_s)
        text_of_segment = None if text is None else text(segment.tokens).strip()
        return TextSegment(start_s, end_s, list(segment.tokens), text_of_segment, ends_s, words)


@dataclass(frozen=True)
class _Part:
    """A part of a recording: its times, and its features."""

    times: JoinedTimes
    sound: StoredFeatures


@dataclass(frozen=True)
class _Speech:
    """Speech that is transcribed together: parts of samples, and their times."""

    samples: StoredSamples
    parts: list[slice]
    times: JoinedTimes

    @property
    def count(self) -> int:
        """The number of samples."""
        return sum(part.stop - part.start for part in self.parts)

    def blocks(self) -> Iterator[Array]:
        """Yield the samples."""
        for part in self.parts:
            for start in range(part.start, part.stop, BLOCK):
                yield self.samples.read(slice(start, min(start + BLOCK, part.stop)))


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
        if self._how.vad is not None:
            return self._open_speech(result, source, self._how.vad)
        for (begin_s, _), blocks in self._clips(source, result.notes):
            live = isinstance(source, SoundSource) and source.stream is not None and len(self._how.clip_timestamps) < 2
            own = self._parts(blocks, begin_s, live=live)
            is_cut |= len(own) > 1
            parts += own
        # Of sound that is still coming, so much tells whether it is one window.
        parts[0].sound.reach(log_mel.frames + 1)
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
            own_frames = part.sound.own_frames
            made.append(self.model.sample_of_features(next(self.numbers), window, self.settings, own_frames))
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
            return [_Part(JoinedTimes.from_s(begin_s), StoredFeatures(log_mel, blocks, live=live))]
        windows = cut(blocks, log_mel.samples)
        first = next(windows)
        second = next(windows, first[:0])
        if len(second) < log_mel.hop:  # too short for another frame
            first, second = np.concatenate([first, second]), first[:0]
        each = chain([first], [second] if len(second) else [], windows)
        return [
            _Part(JoinedTimes.from_s(begin_s + place * log_mel.chunk_s), StoredFeatures(log_mel, [own]))
            for place, own in enumerate(each)
        ]

    def _in_sequence(self, result: InputResult, parts: list[_Part], *, timestamps: bool) -> OpenInput:
        each = [
            SequentialTranscription(self.model, own.sound, self.settings, timestamps=timestamps, times=own.times)
            for own in parts
        ]
        made = _WindowedInput(result, [], parts=each, numbers=self.numbers)
        made.on_transcribed = self._on_transcribed
        made.start()
        return made

    def _open_speech(self, result: InputResult, source: _Recording, how: VadParameters) -> OpenInput:
        """Make the input of the speech in a recording."""
        log_mel, in_groups = self._log_mel, self._how.batched_windows or not self._by_timestamps
        check_rate(log_mel.sampling_rate_hz)
        if in_groups:  # a window has whole parts
            how = how.for_windows(log_mel.chunk_s)
        speech, samples = list[_Speech](), 0
        for (begin_s, _), blocks in self._clips(source, result.notes):
            detector = SpeechDetector()
            stored = StoredSamples(detector.listen(blocks), in_memory=log_mel.samples)
            samples += stored.count
            found = speech_parts(detector.probabilities, stored.count, how)
            for parts in _groups(found, log_mel.samples if in_groups else math.inf):
                spans = [(begin_s + part.start / RATE_HZ, begin_s + part.stop / RATE_HZ) for part in parts]
                speech.append(_Speech(stored, parts, JoinedTimes.of_parts(spans, how.speech_pad_ms / 1000)))
        spoken = sum(own.count for own in speech)
        result.seconds = samples / RATE_HZ
        result.notes.append(note_of_speech(spoken, samples))
        self._on_read(result.seconds)
        timestamps = self._by_timestamps and (self._how.return_timestamps is True or spoken > log_mel.samples)
        made = _WindowedInput(result, [], numbers=self.numbers, silence_s=(samples - spoken) / RATE_HZ)
        made.on_transcribed = self._on_transcribed
        made.rest = self._parts_of_speech(made, speech, timestamps=timestamps)
        made.start()
        return made

    def _parts_of_speech(
        self, made: _WindowedInput, speech: list[_Speech], *, timestamps: bool
    ) -> Iterator[SequentialTranscription]:
        """Make each part, in the language that an earlier one has found."""
        for own in speech:
            sound = StoredFeatures(self._log_mel, own.blocks())
            language = next((part.language_token for part in made.parts if part.language_token is not None), None)
            how: dict[str, Any] = {"timestamps": timestamps, "times": own.times, "language": language}
            yield SequentialTranscription(self.model, sound, self.settings, **how)


def _groups(parts: list[slice], most: float) -> list[list[slice]]:
    """Group consecutive parts that have ``most`` samples together; a longer one is alone."""
    groups: list[list[slice]] = []
    length = math.inf
    for part in parts:
        length += part.stop - part.start
        if length > most or not groups:
            groups.append([])
            length = part.stop - part.start
        groups[-1].append(part)
    return groups


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
