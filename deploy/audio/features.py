"""Whisper's features: the logarithm of a mel spectrogram, in numpy.

Source: transformers 5.24 `WhisperFeatureExtractor`, which computes in float32 with torch. The mel scale is Slaney's:
linear up to 1 kHz, logarithmic above, filters of equal area.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.bundle.settings_file import read_settings
from tightbeam.deploy.errors import BundleError, InputError
from tightbeam.deploy.text.token_ids import as_array, finite_float32

__all__ = ["LogMel", "mel_filters"]

EXTRACTOR = "WhisperFeatureExtractor"
HIGHEST_HZ = 8000.0
LINEAR_HZ_PER_MEL = 200 / 3
LOGARITHMIC_FROM_HZ = 1000.0
LOG_STEP = np.log(6.4) / 27  # of frequency, for one mel above
SMALLEST_POWER = 1e-10
DECADES = 8.0
"""Range of powers, below the highest, that a spectrogram keeps."""
FRAMES_AT_ONCE = 1000
"""Frames whose spectra are computed together, so that they stay in the processor's cache."""


@dataclass(frozen=True)
class LogMel:
    """The feature extractor of a Whisper checkpoint.

    Attributes
    ----------
    mels : int
        Mel filters, rows of the features.
    sampling_rate_hz : int
        Samples a second.
    hop, window : int
        Samples between two frames, and in the Fourier transform of one.
    chunk_s : int
        Seconds of a whole window of audio.
    padding : float
        Value of the samples that a shorter window is padded with.
    """

    mels: int
    sampling_rate_hz: int
    hop: int
    window: int
    chunk_s: int
    padding: float

    @classmethod
    def read(cls, path: Path) -> LogMel:
        """Read a preprocessor_config.json. Raises BundleError if it cannot be read, or like `of`."""
        return cls.of(read_settings(path), path)

    @classmethod
    def of(cls, settings: Mapping[str, Any], path: Path) -> LogMel:
        """Read the settings of the file ``path``.

        Raises BundleError for another extractor's settings, and for impossible values.
        """
        kind = settings.get("feature_extractor_type", EXTRACTOR)
        if kind != EXTRACTOR:
            raise BundleError(f"{path}: feature_extractor_type is {kind!r}, expected {EXTRACTOR!r}; restore the file")
        names = ("feature_size", "sampling_rate", "hop_length", "n_fft", "chunk_length")
        numbers = [settings.get(name) for name in names]
        for name, value in zip(names, numbers, strict=True):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BundleError(
                    f"{path}: {name} is {value!r}, expected a whole number; restore the checkpoint's file"
                )
        mels, rate, hop, window, chunk = (int(value or 0) for value in numbers)
        if not 2 <= window <= chunk * rate:
            raise BundleError(f"{path}: n_fft is {window}, expected 2 to the {chunk * rate} samples of a whole window")
        if settings.get("dither"):
            raise BundleError(f"{path}: dither is {settings['dither']!r}, which adds noise; set it to 0")
        side, padding = settings.get("padding_side", "right"), settings.get("padding_value", 0.0)
        if side != "right":
            raise BundleError(f"{path}: padding_side is {side!r}; supported is 'right', as Whisper was trained")
        if not isinstance(padding, int | float) or isinstance(padding, bool) or not -1 <= padding <= 1:
            raise BundleError(f"{path}: padding_value is {padding!r}, expected a sample's, from -1 to 1, such as 0")
        return cls(mels, rate, hop, window, chunk, float(padding))

    @property
    def samples(self) -> int:
        """Samples of a whole window of audio."""
        return self.chunk_s * self.sampling_rate_hz

    @property
    def frames(self) -> int:
        """Frames of a whole window of audio."""
        return self.samples // self.hop

    def features(self, samples: Array) -> npt.NDArray[np.float32]:
        """Compute the features of one window.

        Parameters
        ----------
        samples : [n]
            At most ``LogMel.samples`` samples in -1..1, padded here to a whole window.

        Returns
        -------
        float32 [mels, frames]
            ``input_features`` of the encoder.
        """
        padded = np.full(self.samples, self.padding, np.float32)
        padded[: len(samples)] = samples
        logs = self.logs(np.pad(padded, self.window // 2, mode="reflect"), self.frames)
        return np.ascontiguousarray(self.scaled(logs, float(logs.max())).T)

    def sound_of(self, features: Array, own_frames: int) -> Array:
        """Cut off the silence that fills a window.

        Parameters
        ----------
        features : float32 [mels, frames]
            Features of a whole window.
        own_frames : int
            Frames of the recording, which come first; below 0 if it ended before the window.

        Returns
        -------
        float32 [mels, X]
            The recording and at least a second of what follows, in whole seconds, so that recordings of about one
            length have one shape.
        """
        second = self.frames // self.chunk_s
        return np.ascontiguousarray(features[:, : (max(own_frames, 0) // second + 2) * second])

    def checked(self, features: Any) -> Array:
        """Check a batch of features as ``model.generate`` takes it.

        Parameters
        ----------
        features : float32 [B, mels, frames]
            Features of whole windows, as `features` makes them.

        Returns
        -------
        float32 [B, mels, frames]

        Raises
        ------
        InputError
            A shape, type or value is wrong.
        """
        batch = as_array("input_features", features)
        if batch.ndim != 3 or batch.shape[1:] != (self.mels, self.frames) or not len(batch):
            raise InputError(
                f"input_features is {list(batch.shape)}, expected [B, {self.mels}, {self.frames}]; "
                "make them with Runner.log_mel.features"
            )
        return finite_float32("input_features", batch)

    def logs(self, samples: Array, count: int) -> npt.NDArray[np.float32]:
        """Compute the decimal logarithms of the powers of frames.

        Parameters
        ----------
        samples : [n]
            Samples, beginning with the first frame.
        count : int
            Number of frames.

        Returns
        -------
        float32 [count, mels]
        """
        windows = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float32, copy=False), self.window)
        frames, half = windows[:: self.hop][:count], self.window // 2
        cosines, sines = self._transform
        powers = np.empty((count, self.mels), np.float32)
        for first in range(0, count, FRAMES_AT_ONCE):
            block = frames[first : first + FRAMES_AT_ONCE]
            rising, falling = block[:, 1 : half + 1], block[:, : -half - 1 : -1]
            power, imaginary = (rising + falling) @ cosines, (rising - falling) @ sines
            power *= power
            imaginary *= imaginary
            power += imaginary
            np.matmul(power, self.filters, out=powers[first : first + len(block)])
        np.maximum(powers, SMALLEST_POWER, out=powers)
        return np.log10(powers, out=powers)

    @staticmethod
    def scaled(logs: npt.NDArray[np.float32], highest: float) -> npt.NDArray[np.float32]:
        """Make features of logarithms. ``highest`` is the highest one in the recording."""
        scaled: npt.NDArray[np.float32] = (
            np.maximum(logs, np.float32(highest - DECADES)) + np.float32(4)
        ) / np.float32(4)
        return scaled

    @cached_property
    def _transform(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Hann's window times the Fourier transform, as cosines and sines [window / 2, window / 2 + 1].

        The cosines multiply the sums of a frame's samples n and window - n, and the sines their differences. Sample 0
        is left out, since the window is zero there.
        """
        n = np.arange(1, self.window // 2 + 1)[:, None]
        angles = 2 * np.pi * n / self.window
        hann = 0.5 - 0.5 * np.cos(angles)
        hann[2 * n == self.window] /= 2  # the sample in the middle is added to itself
        phases = n * np.arange(self.window // 2 + 1) % self.window * (2 * np.pi / self.window)
        return (hann * np.cos(phases)).astype(np.float32), (hann * np.sin(phases)).astype(np.float32)

    @cached_property
    def filters(self) -> npt.NDArray[np.float32]:
        """Filters [window / 2 + 1, mels], as of `mel_filters`."""
        return mel_filters(self.mels, self.window, self.sampling_rate_hz, HIGHEST_HZ)


def mel_filters(mels: int, window: int, rate_hz: int, highest_hz: float) -> npt.NDArray[np.float32]:
    """Return triangular filters [window / 2 + 1, mels] over a spectrum, at equal distances in mel.

    Parameters
    ----------
    mels : int
        The number of filters.
    window : int
        Samples in the Fourier transform of a frame.
    rate_hz : int
        Samples a second.
    highest_hz : float
        The frequency at which the last filter ends.
    """
    spectrum_hz = np.linspace(0, rate_hz // 2, window // 2 + 1)
    feet_hz = _hz(np.linspace(0, _mel(highest_hz), mels + 2))
    slopes = feet_hz[None, :] - spectrum_hz[:, None]
    widths = np.diff(feet_hz)
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    filters: Array = np.maximum(0, np.minimum(rising, falling)) * (2 / (feet_hz[2:] - feet_hz[:-2]))
    return filters.astype(np.float32)


def _mel(hz: float) -> float:
    if hz < LOGARITHMIC_FROM_HZ:
        return hz / LINEAR_HZ_PER_MEL
    return float(LOGARITHMIC_FROM_HZ / LINEAR_HZ_PER_MEL + np.log(hz / LOGARITHMIC_FROM_HZ) / LOG_STEP)


def _hz(mel: Array) -> Array:
    bend = LOGARITHMIC_FROM_HZ / LINEAR_HZ_PER_MEL
    return np.where(mel < bend, mel * LINEAR_HZ_PER_MEL, LOGARITHMIC_FROM_HZ * np.exp((mel - bend) * LOG_STEP))
