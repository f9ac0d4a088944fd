"""Sequential transcription: each window of a recording begins where the timestamps of the window before it end.

Source: transformers 5.24 `WhisperGenerationMixin.generate` and `generate_with_fallback`, for one recording. There, an
attempt that samples sets ``num_beams`` to 1 for the rest of the recording; here the beams stay.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.audio.alignment import token_times
from tightbeam.deploy.audio.joined_times import WHOLE, JoinedTimes
from tightbeam.deploy.audio.segments import FRAME_S, FRAMES, TIMESTAMP_S, Segment, TokenTime, cut_segments
from tightbeam.deploy.audio.stored_features import StoredFeatures
from tightbeam.deploy.generation.options import CHOSEN, GenerationOptions
from tightbeam.deploy.generation.recording import RecordingSettings, WindowStart
from tightbeam.deploy.inputs.output import language_of
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.search import FinishReason, Scored, SearchResult

__all__ = ["SequentialTranscription", "compression_ratio"]

LOW_TEMPERATURE = 0.5
"""A window that took this temperature or a higher one is not the context of the next window."""


@dataclass(frozen=True)
class _Attempt:
    """One attempt at a window: its tokens after the prompt, end token included, why they ended, and whether they are
    accepted."""

    tokens: list[int]
    is_good: bool
    is_silence: bool
    scored: Scored
    finish_reason: FinishReason


class SequentialTranscription:
    """The windows of one recording. Run each `sample`, and `take` its result, until the transcription is `done`.

    Parameters
    ----------
    model : Model
    recording : StoredFeatures
    settings : mapping
        Arguments of ``model.generate``.
    timestamps : bool
        False for a recording of one window, whose tokens have no timestamps.
    times : JoinedTimes
        The times in the recording of this part of it.
    language : int, optional
        The token of the language, if it was found elsewhere.

    Attributes
    ----------
    segments : list of Segment
        The segments that were found so far.
    finish_reason : FinishReason or None
        The reason why the latest window's tokens ended; None before a window was run.
    seek : int
        The first frame of the present window.
    language_probability : float or None
        Probability of the language, if it was found in the first window that ran.
    """

    def __init__(
        self,
        model: Model,
        recording: StoredFeatures,
        settings: Mapping[str, Any],
        *,
        timestamps: bool,
        times: JoinedTimes = WHOLE,
        language: int | None = None,
    ) -> None:
        self.times = times
        self._model, self._recording = model, recording
        self._settings = {**settings, "return_timestamps": timestamps}
        self._own = self._options(WindowStart())
        assert self._own.recording is not None
        self._how: RecordingSettings = self._own.recording
        self._first = model.manifest.generation.get("no_timestamps_token_id", self._own.vocab_size) + 1
        self._longest: int | None = None
        self._language = language
        self.language_probability: float | None = None
        self._conditions = self._how.condition_on_prev_tokens
        self._draft = self._own.draft  # of the windows from the present one on
        prompt = self._how.prompt_ids
        self._prompt = prompt[1:] if prompt and prompt[0] == self._how.prev_sot else prompt
        self.segments: list[Segment] = []
        self.finish_reason: FinishReason | None = None
        self.seek = 0
        self._steps = self._run()
        self._wanted = next(self._steps, None)

    @property
    def language(self) -> str | None:
        """The code of the language, such as "en"; None for a model of one language."""
        return language_of(self._model, (self._language, *self._own.prompt))

    @property
    def language_token(self) -> int | None:
        """The token of the language that was found; None before, and if the settings name one."""
        return self._language

    @property
    def finds_language(self) -> bool:
        """True if the first window that runs finds the language."""
        return CHOSEN in self._own.prompt and self._language is None and not self.done

    @property
    def options(self) -> GenerationOptions:
        """The settings of the first window."""
        return self._own

    @property
    def done(self) -> bool:
        """True if no window is left."""
        return self._wanted is None

    @property
    def seconds(self) -> float:
        """The length of the recording, as far as it is read."""
        return self._recording.seconds

    @property
    def transcribed_s(self) -> float:
        """Seconds of the recording before the present window."""
        return min(self.seek * FRAME_S, self.seconds)

    def close(self) -> None:
        """Free the features."""
        self._recording.close()

    def sample(self, number: int) -> Sample:
        """Return the sample to run next, with this number."""
        assert self._wanted is not None
        options, features = self._wanted
        own_frames = self._recording.own_frames - self.seek
        return Sample(number, options, *self._model.heard_in(features, own_frames))

    def take(self, result: SearchResult) -> None:
        """Take the result of the latest sample."""
        try:
            self._wanted = self._steps.send(result)
        except StopIteration:
            self._wanted = None

    @property
    def _most_before(self) -> int:
        return self._model.manifest.sizes.max_target // 2 - 1

    def _options(self, window: WindowStart) -> GenerationOptions:
        return self._model.settings.window_options(self._settings, window)

    def _run(self) -> Any:
        """Yield options and features of each sample, and receive its result."""
        while self.seek < self._recording.reach(self.seek + self._window_frames):
            frames = min(self._recording.frames - self.seek, self._window_frames)
            if self._is_quiet(frames):
                self.seek += frames
                continue
            features = self._recording.window(self.seek, frames)
            before = self._before()
            if before and CHOSEN in self._own.prompt and self._language is None:
                found = yield _language_alone(self._own), features
                self._language, self.language_probability = int(found.sequences[0, 1]), found.language_probability
            attempt = yield from self._attempts(features, before)
            if attempt.is_silence:
                self.seek += frames
                continue
            tokens, self.finish_reason = attempt.tokens, attempt.finish_reason
            if tokens and tokens[-1] in self._own.eos_token_ids:
                tokens = tokens[:-1]
            times = self._times(tokens, attempt.scored)
            segments, offset = cut_segments(tokens, self._first, self.seek, frames, times)
            self.segments += segments
            self._draft = self._draft[sum(len(segment.tokens) for segment in segments) :]
            self.seek += offset

    def _times(self, tokens: list[int], scored: Scored) -> list[TokenTime] | None:
        """Return the times of a window's tokens; None if they are not asked for."""
        about = self._model.manifest.alignment
        if about is None or scored.alignments is None or scored.tokens is None:
            return None
        own_frames = self._recording.own_frames - self.seek
        ends_s = token_times(scored.alignments[0], own_frames, about.median_filter_width)
        ends_s = np.maximum(ends_s + np.float32(self.seek * TIMESTAMP_S / FRAMES), 0)
        each = zip(tokens, ends_s.tolist(), np.exp(scored.tokens[0]).tolist(), strict=False)  # without the end token
        return [TokenTime(*one) for one in each]

    def _is_quiet(self, frames: int) -> bool:
        """True for a window that holds too little sound above the level of silence."""
        level = self._how.silence_threshold_db
        if level is None:
            return False
        return self._recording.loud_frames(self.seek, frames, level) * FRAME_S < max(self._how.min_speech_s, FRAME_S)

    @property
    def _window_frames(self) -> int:
        return 2 * self._model.manifest.sizes.max_source

    def _attempts(self, features: Array, before: tuple[int, ...]) -> Any:
        """Yield a sample of one window for each temperature, until one is accepted. Returns the last attempt."""
        start = WindowStart(before, self._longest)
        attempt: _Attempt | None = None
        for temperature in self._how.temperatures:
            draft = () if temperature else self._draft
            options = self._options(replace(start, temperature=temperature, draft=draft))
            if self._language is not None:
                prompt = tuple(self._language if token == CHOSEN else token for token in options.prompt)
                options = replace(options, prompt=prompt, choices=())
            if temperature:
                options = options.for_input(features, options.prompt)
            result = yield options, features
            if self._language is None and CHOSEN in self._own.prompt:
                self._language = int(result.sequences[0, len(before) + self._own.prompt.index(CHOSEN)])
                self.language_probability = result.language_probability
            attempt = self._judged(result, options)
            self._conditions = self._how.condition_on_prev_tokens and temperature < LOW_TEMPERATURE
            if attempt.is_good:
                break
        assert attempt is not None
        if self._own.limited_by == "max_length":  # transformers adds each window's prompt to the limit of the next one
            self._longest = options.max_length
        return attempt

    def _judged(self, result: SearchResult, options: GenerationOptions) -> _Attempt:
        """Judge an attempt by the thresholds."""
        how, first = self._how, options.beginning
        tokens: list[int] = result.sequences[0, first : first + result.new_tokens[0]].tolist()
        reason = result.finish_reasons[0]
        is_good = True
        if how.compression_ratio_threshold is not None:
            is_good = compression_ratio(tokens, options.vocab_size) <= how.compression_ratio_threshold
        if how.logprob_threshold is None or result.confidence is None:
            return _Attempt(tokens, is_good, False, result.scored, reason)
        unlikely = result.confidence.mean_logprob < how.logprob_threshold
        silent = how.no_speech_threshold is not None and result.confidence.no_speech > how.no_speech_threshold
        is_good = (is_good and not unlikely) or (unlikely and silent)
        return _Attempt(tokens, is_good, unlikely and silent, result.scored, reason)

    def _before(self) -> tuple[int, ...]:
        """Return the tokens before the start token of the next window."""
        how = self._how
        earlier = [self._prompt] if self._prompt and not how.all_segments else []
        earlier += [self._without_last_of_pair(segment.tokens) for segment in self.segments]
        if self._conditions and earlier:
            joined = tuple(token for tokens in earlier for token in tokens)[-self._most_before :]
            if how.all_segments and how.prompt_ids:
                return (*how.prompt_ids, *joined)
            return (*(() if how.prev_sot is None else (how.prev_sot,)), *joined)
        return how.prompt_ids

    def _without_last_of_pair(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tokens[:-1] if len(tokens) > 2 and tokens[-2] >= self._first else tokens


def compression_ratio(tokens: Sequence[int], vocab_size: int) -> float:
    """Return the ratio of the bytes of token ids to their bytes compressed by zlib: high if tokens repeat.

    Source: transformers 5.24 `WhisperGenerationMixin._retrieve_compression_ratio`.
    """
    width = int(math.log2(vocab_size) / 8) + 1
    data = b"".join(int(token).to_bytes(width, "little") for token in tokens)
    return len(data) / len(zlib.compress(data))


def _language_alone(options: GenerationOptions) -> GenerationOptions:
    """Return options that choose the language after the start token. One more token is generated and ignored."""
    prompt = options.prompt[: options.prompt.index(CHOSEN) + 1]
    return replace(
        options,
        prompt=prompt,
        beginning=len(prompt),
        max_length=len(prompt) + 1,
        min_length=0,
        timestamps=None,
        scoring=None,
    )
