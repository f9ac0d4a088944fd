"""Synthetic audio for the speech tests."""

from __future__ import annotations

from typing import Any

import numpy as np

RATE_HZ = 16000
Array = Any


def chirp(seconds: float, rate_hz: int = RATE_HZ, low_hz: float = 80, high_hz: float = 5000) -> Array:
    """A rising tone, float32 [n]."""
    time_s = np.arange(int(seconds * rate_hz)) / rate_hz
    phase = 2 * np.pi * (low_hz * time_s + (high_hz - low_hz) * time_s**2 / (2 * seconds))
    return (0.4 * np.sin(phase) * np.sin(9 * time_s) ** 2).astype(np.float32)
