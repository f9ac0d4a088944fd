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


def window_recordings(second_s: float = 0.6) -> list[Array]:
    """Recordings of one to four windows of one second: tones, silence, noise. ``second_s``: length of the second."""
    noise = (np.random.default_rng(1).standard_normal(int(0.8 * RATE_HZ)) * 0.05).astype(np.float32)
    silence = np.zeros(RATE_HZ, np.float32)
    return [
        np.concatenate([chirp(0.9), silence, chirp(1.2, low_hz=2000, high_hz=90)]),
        chirp(second_s),
        np.concatenate([noise, chirp(0.4)]),
        np.concatenate([silence, silence, chirp(1.34, high_hz=700)]),
    ]
