"""Settings of voice activity.

Source: ``vad_parameters`` of faster-whisper, and of its batched pipeline. Names and defaults are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

__all__ = ["VAD_BOUNDS", "VadParameters"]

SILENCE_MS, SILENCE_IN_WINDOWS_MS = 2000, 160
MOST_MS = 3.6e6
VAD_BOUNDS: dict[str, tuple[float, float]] = {
    "threshold": (0.01, 1),
    "min_speech_duration_ms": (0, MOST_MS),
    "max_speech_duration_s": (1, math.inf),
    "min_silence_duration_ms": (0, MOST_MS),
    "speech_pad_ms": (0, MOST_MS),
}
"""The least and the largest value of each field of `VadParameters`."""


@dataclass(frozen=True)
class VadParameters:
    """The settings by which the speech in a recording is found.

    Attributes
    ----------
    threshold : float
        The probability from which on a chunk of 32 ms is speech.
    min_speech_duration_ms : float
        Shorter parts are left out.
    max_speech_duration_s : float
        Longer parts are cut, at their last pause if they have one.
    min_silence_duration_ms : float or None
        The silence that ends a part; None for `SILENCE_MS`, or `SILENCE_IN_WINDOWS_MS` if windows end between parts.
    speech_pad_ms : float
        Sound that is kept on both sides of a part.
    """

    threshold: float = 0.5
    min_speech_duration_ms: float = 0
    max_speech_duration_s: float = math.inf
    min_silence_duration_ms: float | None = None
    speech_pad_ms: float = 400

    def for_parts(self, seconds: float) -> VadParameters:
        """Return settings whose parts have at most so many seconds."""
        return replace(self, max_speech_duration_s=min(self.max_speech_duration_s, seconds))

    def for_windows(self, seconds: float) -> VadParameters:
        """Return settings whose parts fit windows of so many seconds, several in one."""
        silence_ms = self.min_silence_duration_ms
        silence_ms = SILENCE_IN_WINDOWS_MS if silence_ms is None else silence_ms
        return replace(self.for_parts(seconds), min_silence_duration_ms=silence_ms)
