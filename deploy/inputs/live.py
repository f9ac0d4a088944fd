"""Live recognition: the text of sound that is still coming, by agreement of successive runs (LocalAgreement-2).

Source: Macháček, Dabre and Bojar 2023, "Turning Whisper into Real-Time Transcription System", arXiv 2307.14743.

The sound that has come since the last cut is run again whenever there is enough more of it. Words on which two
successive runs agree are settled, and never change. The others are pending:

    run 1   the painter draws the how
    run 2   the painter draws the house the          settled: the painter draws the
    run 3   the painter draws the house. The old     settled: nothing more, since "house" has become "house."
    run 4   the painter draws the house. The old gar settled: house. The old

Each run begins with words that are settled already. They are found as the beginning of the run that has the smallest
edit distance to them, since a later run may say them otherwise. The sound is cut at the end of a segment whose words
are settled, so that a run has never more than one window of the model.

The tokens of a run are a draft of the next one (`draft_ids`). The decoder verifies them many at a time, so that only
words that change and words that are new take a step for each token.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.generation.fields import TIMES
from tightbeam.deploy.generation.whisper import has_timestamps
from tightbeam.deploy.inputs.files.audio import as_samples, audio_fault
from tightbeam.deploy.inputs.output import Output
from tightbeam.deploy.inputs.run import finished
from tightbeam.deploy.inputs.windows import run_windows
from tightbeam.deploy.inputs.words import WITHOUT_SPACES
from tightbeam.deploy.model.model import Model

__all__ = [
    "HeardSegment",
    "LiveRun",
    "LiveText",
    "LiveTranscription",
    "LiveUpdate",
    "LiveWord",
    "Revision",
    "heard_segments",
    "live_settings",
]

STEP_S, STEPS_OF_WINDOW = 1.0, 4
"""Seconds of new sound that start a run, and the fewest steps in a window."""
MARGIN_S, MARGINS_OF_WINDOW = 1.0, 8
"""Seconds at the end of the sound in which words may still change, and the fewest of them in a window."""
CONTEXT_BY_POSITION = 0.25
"""Characters of earlier text before a run, for each position of the model's decoder: a character of another script
than Latin may be two tokens, and half of the positions are for the earlier text."""


@dataclass(frozen=True)
class LiveWord:
    """A word of live sound.

    Attributes
    ----------
    word : str
        The word with the space before it and the punctuation around it.
    start_s, end_s : float
        Seconds from the beginning of the sound; the times of its segment if the bundle has no times of words.
    """

    word: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Revision:
    """Settled words that a later run over the same sound says otherwise. They stay as they are.

    Attributes
    ----------
    start_s, end_s : float
        Seconds from the beginning of the sound.
    settled, later : str
        The settled words, and the words of the later run.
    """

    start_s: float
    end_s: float
    settled: str
    later: str


@dataclass(frozen=True)
class LiveUpdate:
    """A change of the live text by a run over the sound.

    Attributes
    ----------
    words : list of LiveWord
        The words that are settled now. The words of all updates are the text.
    pending : str
        What the run says behind the settled words, which may change.
    heard_s : float
        Seconds of sound that were run so far.
    revisions : list of Revision
        Where the run says settled words otherwise; told when the sound is cut, and at the end.
    """

    words: list[LiveWord]
    pending: str
    heard_s: float
    revisions: list[Revision] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The settled words as text, which begins with a space if the first word has one."""
        return "".join(word.word for word in self.words)


@dataclass(frozen=True)
class HeardSegment:
    """A segment that a run has found.

    Attributes
    ----------
    end_s : float
        Seconds from the beginning of the run's sound.
    words : tuple of LiveWord
        Its words, with times from the beginning of the run's sound.
    tokens : tuple of int
        Its tokens, timestamps among them.
    """

    end_s: float
    words: tuple[LiveWord, ...]
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class LiveRun:
    """Sound to run.

    Attributes
    ----------
    samples : float32 [n]
        At most one window.
    language : str or None
        The language that earlier runs have found.
    context : str
        The end of the text before this sound.
    draft : tuple of int
        The tokens of the latest run that are likely to come again, which a run verifies.
    """

    samples: Array
    language: str | None
    context: str
    draft: tuple[int, ...] = ()


class LiveText:
    """The settled and the pending text of sound that comes in pieces. Runs are made elsewhere.

    `add` sound, run each `next_run` and `take` what it gives, and `settle_rest` behind the last one.

    Parameters
    ----------
    rate_hz : int
        Samples a second.
    window_s : float
        Seconds of a window of the model.
    step_s : float, optional
        Seconds of new sound that start a run; 1 by default, and at most a quarter of a window.
    context_characters : int
        The most characters of `LiveRun.context`.

    Raises
    ------
    InputError
        ``step_s`` is not a number in its range.
    """

    def __init__(
        self, rate_hz: int, window_s: float, step_s: float | None = None, *, context_characters: int = 0
    ) -> None:
        most_s = window_s / STEPS_OF_WINDOW
        step_s = min(STEP_S, most_s) if step_s is None else step_s
        if isinstance(step_s, bool) or not isinstance(step_s, int | float) or not 0.01 <= step_s <= most_s:
            raise InputError(f"step_s is {step_s!r}, expected a number of seconds from 0.01 to {most_s:g}; pass 1")
        self._rate_hz, self._window_s, self._step_s = rate_hz, window_s, step_s
        self._margin_s = min(MARGIN_S, window_s / MARGINS_OF_WINDOW)
        self._new: list[Array] = []
        self._sound: Array = np.zeros(0, np.float32)  # since the last cut
        self._begin = 0  # the first sample of the sound
        self._ended = False
        self._said: list[LiveWord] = []  # settled words of the sound
        self._run: list[LiveWord] = []  # of the latest run over the sound
        self._ends: list[tuple[float, tuple[int, ...]]] = []  # ends and tokens of its segments
        self._settled_of_run = 0
        self._last_s = 0.0  # the end of the last settled word
        self._language: str | None = None
        self._before, self._most_before = "", context_characters  # text before the sound

    @property
    def unread_s(self) -> float:
        """Seconds of sound that were added and not run."""
        return sum(map(len, self._new)) / self._rate_hz

    @property
    def heard_s(self) -> float:
        """Seconds of sound that were run."""
        return (self._begin + len(self._sound)) / self._rate_hz

    def add(self, samples: Array) -> None:
        """Add samples float32 [n]."""
        if len(samples):
            self._new.append(samples)

    def end(self) -> None:
        """Let the rest be run, however short it is: no more sound comes."""
        self._ended = True

    def next_run(self, took_s: float | None = None) -> LiveRun | None:
        """Return the sound to run next; None while too little is new.

        It has at most twice as much new sound as the latest run ``took_s``, and a step at least: so a file in a pipe is
        run step by step, and a model that lags behind a microphone catches up.
        """
        if not self._new or (not self._ended and self.unread_s < self._step_s):
            return None
        new = np.concatenate(self._new)
        whole = round(self._window_s * self._rate_hz)
        room = min(whole - len(self._sound), whole // 2)  # two runs at least before the sound must be cut
        if took_s is not None:
            room = min(room, round(max(self._step_s, 2 * took_s) * self._rate_hz))
        self._sound, rest = np.concatenate([self._sound, new[:room]]), new[room:]
        self._new = [rest] if len(rest) else []
        draft = tuple(token for _, tokens in self._ends for token in tokens)
        return LiveRun(self._sound, self._language, self._before, draft)

    def take(self, segments: Sequence[HeardSegment], language: str | None = None) -> LiveUpdate:
        """Take the segments and the language of the latest `next_run`."""
        begin_s, end_s = self._begin / self._rate_hz, self.heard_s
        words, ends = list[LiveWord](), list[tuple[int, float]]()
        for segment in segments:
            for word in segment.words:
                if word.word.strip():
                    start_s, stop_s = (min(begin_s + each, end_s) for each in (word.start_s, word.end_s))
                    words.append(LiveWord(word.word, start_s, max(start_s, stop_s)))
            ends.append((len(words), min(begin_s + segment.end_s, end_s)))
        before = self._run[self._settled_of_run :]
        settled = _beginning([_key(word) for word in words], [_key(word) for word in self._said])
        first = settled
        for word, earlier in zip(words[first:], before, strict=False):
            if word.word.strip() != earlier.word.strip():
                break
            settled += 1
        self._run, self._settled_of_run = words, settled
        self._ends = [(begin_s + segment.end_s, segment.tokens) for segment in segments]
        cut = self._segment_end(ends, end_s)
        if cut is None and end_s - begin_s + self._step_s > self._window_s:
            cut = self._forced_cut(begin_s, end_s)
            self._settled_of_run = settled = max(settled, cut[0])
        new = [self._settle(word) for word in words[first:settled]]
        if new and self._language is None:
            self._language = language
        revisions = list[Revision]()
        if cut is not None:
            revisions = self._revisions()
            self._cut(*cut)
        return LiveUpdate(new, self.pending, end_s, revisions)

    def settle_rest(self) -> LiveUpdate:
        """Settle what is pending. Sound that comes later is sound of its own."""
        new = [self._settle(word) for word in self._run[self._settled_of_run :]]
        self._settled_of_run = len(self._run)
        revisions = self._revisions()
        self._cut(len(self._run), self.heard_s)
        self._ended = False
        return LiveUpdate(new, "", self.heard_s, revisions)

    @property
    def pending(self) -> str:
        """The text behind the settled words, which may change."""
        return "".join(word.word for word in self._run[self._settled_of_run :])

    def _settle(self, word: LiveWord) -> LiveWord:
        """Settle a word, whose times do not go back behind the end of the word before it."""
        start_s = max(word.start_s, self._last_s)
        self._last_s = max(word.end_s, start_s)
        found = LiveWord(word.word, round(start_s, 2), round(self._last_s, 2))
        self._said.append(found)
        return found

    def _segment_end(self, ends: Sequence[tuple[int, float]], end_s: float) -> tuple[int, float] | None:
        """Return the number of words up to the last segment that is settled, and its end, once there is half a window.

        The last segment counts if it has ended for some time; it may be one that goes on otherwise.
        """
        begin_s = self._begin / self._rate_hz
        if end_s - begin_s <= self._window_s / 2:
            return None
        return next(
            (
                (count, stop_s)
                for place, (count, stop_s) in reversed(list(enumerate(ends)))
                if count <= self._settled_of_run
                and stop_s > begin_s
                and (place < len(ends) - 1 or stop_s <= end_s - self._margin_s)
            ),
            None,
        )

    def _forced_cut(self, begin_s: float, end_s: float) -> tuple[int, float]:
        """Return the number of words to settle, and the time to cut at, so that the window has room for a step."""
        words, settled = self._run, self._settled_of_run
        latest_s, earliest_s = end_s - self._margin_s, end_s + self._step_s - self._window_s
        places = [
            count
            for count in range(1, len(words) + 1)
            if count == len(words) or words[count].start_s >= words[count - 1].end_s - 0.01
        ]
        agreed = [count for count in places if count <= settled]
        if agreed and words[agreed[-1] - 1].end_s >= (begin_s + end_s) / 2:
            return agreed[-1], words[agreed[-1] - 1].end_s
        certain = [count for count in places if count > settled and words[count - 1].end_s <= latest_s]
        if certain and words[certain[-1] - 1].end_s >= earliest_s:
            return certain[-1], words[certain[-1] - 1].end_s
        return len(words), end_s if words else latest_s

    def _cut(self, count: int, time_s: float) -> None:
        """Drop the sound up to a time, and the first ``count`` words of the latest run."""
        samples = min(max(0, round(time_s * self._rate_hz) - self._begin), len(self._sound))
        self._sound, self._begin = self._sound[samples:], self._begin + samples
        text = self._before + "".join(word.word for word in self._run[:count])
        self._before = text[max(0, len(text) - self._most_before) :] if self._most_before else ""
        self._run, self._settled_of_run = self._run[count:], self._settled_of_run - count
        self._said = self._run[: self._settled_of_run]
        self._ends = [(end_s, tokens) for end_s, tokens in self._ends if end_s > time_s]

    def _revisions(self) -> list[Revision]:
        """Compare the settled words of the sound with the words of the latest run."""
        said, run = self._said, self._run[: self._settled_of_run]
        matcher = SequenceMatcher(a=[*map(_key, said)], b=[*map(_key, run)], autojunk=False)
        found = []
        for kind, first, end, run_first, run_end in matcher.get_opcodes():
            if kind != "equal":
                own, later = said[first:end], run[run_first:run_end]
                times = own or later
                texts = ("".join(word.word for word in each).strip() for each in (own, later))
                found.append(Revision(round(times[0].start_s, 2), round(times[-1].end_s, 2), *texts))
        return found


def _key(word: LiveWord) -> str:
    """Return a word without capitals, spaces and punctuation, by which words of two runs are compared."""
    return "".join(sign for sign in word.word if sign.isalnum()).casefold() or word.word.strip()


def _beginning(words: Sequence[str], said: Sequence[str]) -> int:
    """Return how many first words have the smallest edit distance to the words that were said.

    Of several numbers the one that is nearest to theirs counts.
    """
    costs = np.arange(len(words) + 1)
    for count, own in enumerate(said, 1):
        line = [count]
        for place, word in enumerate(words):
            line.append(min(costs[place] + (word != own), costs[place + 1] + 1, line[-1] + 1))
        costs = np.array(line)
    return min(range(len(words) + 1), key=lambda place: (costs[place], abs(place - len(said))))


def heard_segments(output: Output) -> list[HeardSegment]:
    """Return the segments of a run by their words; words without times have those of their segment."""
    found = []
    for segment in output.segments or []:
        if segment.words is not None:
            words = tuple(LiveWord(word.word, word.start_s, word.end_s) for word in segment.words)
        else:
            signs = r"\s*\S" if output.language in WITHOUT_SPACES else r"\s*\S+"
            each = re.findall(signs, f" {segment.text or ''}")
            words = tuple(LiveWord(word, segment.start_s, segment.end_s) for word in each)
        found.append(HeardSegment(segment.end_s, words, tuple(segment.tokens)))
    return found


def live_settings(settings: Mapping[str, Any], run: LiveRun, *, words: bool) -> dict[str, Any]:
    """Return the settings of a run. With ``words`` it gives the times of words."""
    own = {**settings, "return_timestamps": True, "draft_ids": list(run.draft)}
    if words:
        own[TIMES] = True
    if run.language is not None:
        own["language"] = run.language
    if run.context.strip() and "<|" not in run.context:  # text that looks like a special token is no prompt
        own.pop("prompt_ids", None)
        own["prompt"] = run.context
    return own


class LiveTranscription:
    """The text of sound that is still coming, as `Runner.live` returns it. For use by one thread.

    Parameters
    ----------
    model : Model
    settings : mapping
        Arguments of ``model.generate``.
    step_s : float, optional
        Seconds of new sound that start a run; 1 by default, and at most a quarter of a window.

    Raises
    ------
    GenerationError
        A setting is wrong, or is not for live sound.
    InputError
        The model is not a Whisper model with timestamps and a tokenizer, or ``step_s`` is out of range.
    """

    def __init__(self, model: Model, settings: Mapping[str, Any], step_s: float | None = None) -> None:
        if model.log_mel is None or not has_timestamps(model.manifest.generation, model.manifest.sizes.vocabulary):
            raise InputError("live recognition needs a Whisper model with timestamps; pass the bundle of one")
        model.text.require_tokenizer()
        self._model, self._settings = model, dict(settings)
        options = model.settings.options({**settings, "return_timestamps": True})
        how = options.recording
        assert how is not None
        if options.scoring is not None and not options.aligned:
            raise GenerationError(f"{options.scoring.asked} is not for live recognition; leave it out")
        if how.clip_timestamps:
            raise GenerationError("clip_timestamps is for recordings, not for live sound; leave it out")
        if how.condition_on_prev_tokens and how.all_segments:
            raise GenerationError(
                "condition_on_prev_tokens is not for live sound with hotwords, or a prompt of all segments; "
                "leave one of them out"
            )
        try:
            model.settings.options({**settings, "return_timestamps": True, TIMES: True})
            self._words = model.manifest.alignment is not None
        except GenerationError:
            self._words = False
        most = int(model.manifest.sizes.max_target * CONTEXT_BY_POSITION) if how.condition_on_prev_tokens else 0
        self._took_s = 0.0
        self._text = LiveText(model.log_mel.sampling_rate_hz, model.log_mel.chunk_s, step_s, context_characters=most)

    def add(self, samples: Array) -> list[LiveUpdate]:
        """Add sound, and run the model if there is enough of it.

        Parameters
        ----------
        samples : float array [n]
            Samples in -1..1 at the model's rate, ``Runner.log_mel.sampling_rate_hz``. Any number of them.

        Returns
        -------
        list of LiveUpdate
            One for each run: none while too little sound is new, one usually, several if much is.

        Raises
        ------
        InputError
            The samples are not floats, or hold NaN or infinity.
        BundleError
            The runtime failed.
        """
        new: npt.NDArray[np.float32] = as_samples("the sound", samples)
        if len(new) and (fault := audio_fault(new)):
            raise InputError(f"the sound {fault}")
        self._text.add(new)
        return self._run()

    def finish(self) -> list[LiveUpdate]:
        """Run the rest of the sound, and settle all words. Sound that is added later is sound of its own.

        Returns
        -------
        list of LiveUpdate
            The last one has no pending text.

        Raises
        ------
        BundleError
            The runtime failed.
        """
        self._text.end()
        return [*self._run(), self._text.settle_rest()]

    def settle_rest(self) -> LiveUpdate:
        """Settle the pending words without another run, as after an interruption.

        Returns
        -------
        LiveUpdate
        """
        return self._text.settle_rest()

    def _run(self) -> list[LiveUpdate]:
        updates = []
        while (run := self._text.next_run(self._took_s)) is not None:
            begin_s = time.perf_counter()
            output = self._output(run)
            self._took_s = time.perf_counter() - begin_s
            updates.append(self._text.take(heard_segments(output), output.language))
        return updates

    def _output(self, run: LiveRun) -> Output:
        settings = live_settings(self._settings, run, words=self._words)
        (each,) = finished(run_windows(self._model, [run.samples], batch_size=1, settings=settings))
        if each.failure is not None:
            raise each.failure
        assert each.made is not None
        return each.made
