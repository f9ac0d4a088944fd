"""A speech model's feature settings, and audio for the measurements and the comparison with torch."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from tightbeam.deploy.audio.extractors import extractor_of
from tightbeam.deploy.audio.features import LogMel
from tightbeam.deploy.audio.recordings import Extractor
from tightbeam.deploy.errors import BundleError
from tightbeam.export.checkpoint.config import feature_settings
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.checkpoint.recordings import PCM_STEPS, read_recording
from tightbeam.export.errors import ExportError
from tightbeam.export.families.base import longest_source, positions_of

__all__ = ["SpeechSamples", "check_speech", "speech_samples"]

SHARES = (0.2, 0.45, 0.8, 1.0)
"""Share of the window that each sample fills."""
LARGE = 500_000_000
"""Parameter count from which torch takes a quarter of a minute of a core for a window, so that two must do."""
RECORDING_S = 2.3
"""Synthetic sample of a model that takes whole recordings."""
LONGEST_S = 30
"""The most that such a model is measured on of a recording of the user's: its attention takes the square of it."""


def check_speech(checkpoint: Checkpoint) -> None:
    """Raise ExportError if a speech model's feature settings do not match its config."""
    if checkpoint.family.has_windows:
        _window(checkpoint)
    elif checkpoint.family.is_speech:
        _extractor(checkpoint)


def _extractor(checkpoint: Checkpoint) -> Extractor:
    """The feature extractor of a model that takes whole recordings."""
    assert checkpoint.family.feature_config is not None
    path, settings = feature_settings(checkpoint.path, checkpoint.family.feature_config)
    try:
        extractor = extractor_of(settings, path)
    except BundleError as error:
        raise ExportError(str(error)) from None
    expected = checkpoint.family.recording_rows(checkpoint.config)
    if extractor.row_shape != expected:
        found, wanted = (f"{shape[0]} mels" if shape else "samples" for shape in (extractor.row_shape, expected))
        raise ExportError(
            f"{path}: makes features of {found}, config.json expects {wanted}; give the file that belongs to these "
            "weights"
        )
    return extractor


def _window(checkpoint: Checkpoint) -> tuple[int, int]:
    """The length of a window in samples, and the sampling rate in Hz, by the checkpoint's feature settings."""
    assert checkpoint.family.feature_config is not None
    path, settings = feature_settings(checkpoint.path, checkpoint.family.feature_config)
    config = checkpoint.config
    try:
        log_mel = LogMel.of(settings, path)
    except BundleError as error:
        raise ExportError(str(error)) from None
    expected = (config.num_mel_bins, 2 * config.max_source_positions)
    if (log_mel.mels, log_mel.frames) != expected:
        raise ExportError(
            f"{path}: makes features of {log_mel.mels} mels and {log_mel.frames} frames, config.json expects "
            f"{expected[0]} and {expected[1]}; give the file that belongs to these weights"
        )
    return log_mel.samples, log_mel.sampling_rate_hz


@dataclass(frozen=True)
class SpeechSamples:
    """Audio for the comparison of a speech model."""

    rows: tuple[npt.NDArray[np.int16], ...]
    """B recordings of 16-bit samples"""
    rate_hz: int
    features: torch.Tensor
    """float32 [B, mels, frames] or [B, X, ...], by transformers' own extractor"""
    positions: int
    """N of each sample; whole recordings have one length"""
    has_windows: bool = True
    """they are windows, of Whisper"""
    name: str = "input_features"
    """input of the encoder"""
    synthetic: bool = True
    """they are made here, and not the user's recordings"""
    as_ids = False

    def inputs(self, folder: Path) -> tuple[str, ...]:
        """Inputs of JSON lines for ``run-model``: paths of audio files, written into ``folder``."""
        paths = [folder / f"{index}.wav" for index in range(len(self.rows))]
        for path, row in zip(paths, self.rows, strict=True):
            with wave.open(str(path), "wb") as file:
                file.setparams((1, 2, self.rate_hz, 0, "NONE", ""))
                file.writeframes(row.astype("<i2").tobytes())
        return tuple(str(path) for path in paths)

    def arguments(self, dtype: torch.dtype) -> dict[str, Any]:
        """Arguments of ``model.generate`` for the same input."""
        features = {self.name: self.features.to(dtype)}
        # One call a window: else transformers splits it at timestamps, which a model may generate unasked.
        return {**features, "force_unique_generate_call": True} if self.has_windows else features

    def shown(self, text: str) -> str:
        """A decoded text as ``run-model`` prints it."""
        return text.strip() if self.has_windows else text


def speech_samples(checkpoint: Checkpoint, recordings: Sequence[str] = ()) -> SpeechSamples:
    """Audio for a speech model.

    Parameters
    ----------
    checkpoint
        The model.
    recordings
        Names of audio files, of which the first window is taken; by default synthetic audio, gliding tones with
        harmonics and pauses, and some noise.

    Raises
    ------
    ExportError
        A recording cannot be read, or is too short.
    """
    if not checkpoint.family.has_windows:
        return _recordings(checkpoint, recordings)
    samples, rate_hz = _window(checkpoint)
    large = sum(parameter.numel() for parameter in checkpoint.model.parameters()) >= LARGE
    rows = tuple(read_recording(name, rate_hz, samples) for name in recordings)
    rows = rows or _voices([int(share * samples) for share in (SHARES[1::2] if large else SHARES)], rate_hz)
    features = _extracted(checkpoint, rows, rate_hz).input_features
    return SpeechSamples(rows, rate_hz, features, checkpoint.sizes.max_source, synthetic=not recordings)


def _recordings(checkpoint: Checkpoint, recordings: Sequence[str]) -> SpeechSamples:
    """Recordings of one length: transformers would pad others, which changes its output."""
    extractor, convolutions = _extractor(checkpoint), checkpoint.family.convolutions(checkpoint.config)
    rate_hz = extractor.sampling_rate_hz
    shortest = extractor.samples_of(longest_source(0, convolutions) + 1)
    longest = extractor.samples_of(longest_source(checkpoint.sizes.max_source, convolutions) + 1) - 1
    found = [read_recording(name, rate_hz, min(LONGEST_S * rate_hz, longest)) for name in recordings]
    count = min(map(len, found), default=min(int(RECORDING_S * rate_hz), longest))
    for name, row in zip(recordings, found, strict=True):
        if len(row) < shortest:
            raise ExportError(f"calibration: {name} has {len(row)} samples, expected {shortest} or more; leave it out")
    rows = tuple(row[:count] for row in found) or _voices([count] * len(SHARES), rate_hz)
    extracted = _extracted(checkpoint, rows, rate_hz)
    counted = extracted.get("attention_mask")  # frames that all rows have; an extractor may make another one
    features = extracted[extractor.input][:, : None if counted is None else int(counted.sum(dim=1).max())]
    positions = positions_of(features.shape[1], convolutions)
    return SpeechSamples(rows, rate_hz, features, positions, False, extractor.input, not recordings)


def _voices(counts: list[int], rate_hz: int) -> tuple[npt.NDArray[np.int16], ...]:
    """Synthetic voices of so many samples each."""
    generator = np.random.default_rng(0)
    rows = []
    for count in counts:
        time_s = np.arange(count) / rate_hz
        pitch_hz = generator.uniform(90, 240) * (1 + 0.4 * np.sin(2 * np.pi * generator.uniform(0.5, 3) * time_s))
        phase = 2 * np.pi * np.cumsum(pitch_hz) / rate_hz
        voice = sum(np.sin(k * phase) * generator.uniform(0.2, 1) / k for k in range(1, 20))
        loud = np.maximum(0, np.sin(2 * np.pi * generator.uniform(1, 5) * time_s + generator.uniform(0, 6)))
        made = 0.2 * voice * loud + 0.005 * generator.standard_normal(len(time_s))
        rows.append(np.clip(np.round(made * PCM_STEPS), -PCM_STEPS, PCM_STEPS - 1).astype(np.int16))
    return tuple(rows)


def _extracted(checkpoint: Checkpoint, rows: tuple[npt.NDArray[np.int16], ...], rate_hz: int) -> Any:
    """Features of samples by transformers' own extractor."""
    extractor = transformers.AutoFeatureExtractor.from_pretrained(checkpoint.path, local_files_only=True)
    waves = [row.astype(np.float32) / PCM_STEPS for row in rows]
    return extractor(waves, sampling_rate=rate_hz, return_tensors="pt")
