"""Synthetic audio for the speech tests."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

RATE_HZ = 16000
Array = Any


def chirp(seconds: float, rate_hz: int = RATE_HZ, low_hz: float = 80, high_hz: float = 5000) -> Array:
    """A rising tone, float32 [n]."""
    time_s = np.arange(int(seconds * rate_hz)) / rate_hz
    phase = 2 * np.pi * (low_hz * time_s + (high_hz - low_hz) * time_s**2 / (2 * seconds))
    return (0.4 * np.sin(phase) * np.sin(9 * time_s) ** 2).astype(np.float32)


def vowels(seconds: float, pitch_hz: float = 120, rate_hz: int = RATE_HZ) -> Array:
    """Vowels in four syllables a second, float32 [n]: harmonics of a voice, with formants that move."""
    time_s = np.arange(int(seconds * rate_hz)) / rate_hz
    voice_hz = pitch_hz * (1 + 0.1 * np.sin(2 * np.pi * 1.5 * time_s))
    turns = np.cumsum(voice_hz) / rate_hz
    moved = 0.5 + 0.5 * np.sin(2 * np.pi * 2.3 * time_s)
    formants = ((700, -400, 80, 1.0), (1200, 1000, 100, 0.6), (2600, 400, 150, 0.25))
    wave = np.zeros(len(time_s))
    for harmonic in range(1, 40):
        each = (peak / (1 + ((harmonic * voice_hz - low - by * moved) / wide) ** 2) for low, by, wide, peak in formants)
        wave += sum(each) * np.sin(2 * np.pi * harmonic * turns)
    syllables = np.clip(np.sin(2 * np.pi * 4 * time_s) + 0.5, 0, 1)
    return (0.3 * wave * syllables / np.abs(wave).max()).astype(np.float32)


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


def encoded(*waves: Array, kind: str, codec: str, rate_hz: int = RATE_HZ, video: bool = False, **options: str) -> bytes:
    """A file that PyAV writes, with a stream of sound for each of ``waves`` [n] or [channels, n], and maybe a picture.

    ``kind`` and ``codec`` are FFmpeg's names, ``options`` those of the format.
    """
    import av

    data = io.BytesIO()
    with av.open(data, "w", format=kind, options=options) as file:
        pictures = file.add_stream("mpeg4", rate=5) if video else None
        streams = []
        for wave in waves:
            streams.append(stream := file.add_stream(codec, rate=rate_hz))
            channels = 1 if wave.ndim == 1 else len(wave)
            stream.layout = ["mono", "stereo"][channels - 1] if channels < 3 else f"{channels}c"
            stream.bit_rate = 128_000
        if pictures is not None:
            pictures.width, pictures.height, pictures.pix_fmt = 32, 32, "yuv420p"
            for _ in range(5):
                file.mux(pictures.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")))
            file.mux(pictures.encode(None))
        for stream, wave in zip(streams, waves, strict=True):
            packed = np.ascontiguousarray(np.atleast_2d(wave).T).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(packed, "flt", stream.layout)
            frame.sample_rate, frame.pts = rate_hz, 0
            file.mux(stream.encode(frame) if packed.size else [])
            file.mux(stream.encode(None))
    return data.getvalue()
