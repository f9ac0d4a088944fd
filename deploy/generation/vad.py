"""Settings of voice activity.

Source: ``vad_parameters`` of faster-whisper, whose names and defaults they have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["VAD_BOUNDS", "VadParameters"]

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
    """How the speech in a recording is found.

    Attributes
    ----------
    threshold : float
        The probability from which on a chunk of 32 ms is speech.
    min_speech_duration_ms : float
        Shorter parts are left out.
    max_speech_duration_s : float
        Longer parts are cut, at their last pause if they have one.
    min_silence_duration_ms : float
        The silence that ends a part.
    speech_pad_ms : float
        Sound that is kept on both sides of a part.
    """

    threshold: float = 0.5
    min_speech_duration_ms: float = 0
    max_speech_duration_s: float = math.inf
    min_silence_duration_ms: float = 2000
    speech_pad_ms: float = 400
