"""Kaldi's filter bank features, normalised over a recording (Speech2Text), in numpy.

Source: transformers 5.24 `Speech2TextFeatureExtractor` without torchaudio, with equal results. With torchaudio,
transformers computes in float32 by that package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.errors import BundleError, InputError

__all__ = ["FilterBank"]

EXTRACTOR = "Speech2TextFeatureExtractor"
WINDOW, HOP, TRANSFORMED = 400, 160, 512
"""Samples of a frame, between two frames, and in the Fourier transform of a frame, at any sampling rate."""
LOWEST_HZ = 20.0
PREEMPHASIS = 0.97
SMALLEST_POWER = 1.192092955078125e-07
LOUDEST = 1 << 15
"""Kaldi's number for a sample of 1.0."""
FRAMES_AT_ONCE = 1000
"""Frames whose spectra are computed together, so that they stay in the processor's cache."""


@dataclass(frozen=True)
class FilterBank:
    """The feature extractor of a Speech2Text checkpoint.

    Attributes
    ----------
    sampling_rate_hz : int
        Samples a second.
    mels : int
        Mel filters, columns of the features.
    means, variances : bool
        Give each column mean 0, or variance 1, over the recording.
    """

    sampling_rate_hz: int
    mels: int
    means: bool
    variances: bool
    input = "input_features"
    """the encoder's input"""
    ignores_padding = False
    """padding changes how a recording is encoded"""
    clip = cut = None
    """transformers' extractor cuts no recording"""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Numbers of each frame."""
        return (self.mels,)

    @classmethod
    def of(cls, settings: Mapping[str, Any], path: Path) -> FilterBank:
        """Read the settings of the file ``path``. Raises BundleError for impossible values."""
        numbers = {
            name: settings.get(name, default) for name, default in (("sampling_rate", 16000), ("num_mel_bins", 80))
        }
        for name, value in numbers.items():
            if type(value) is not int or not 1 <= value < 2**20:
                raise BundleError(f"{path}: {name} is {value!r}, expected a whole number; restore the file")
        flags = {
            name: settings.get(name, True) for name in ("do_ceptral_normalize", "normalize_means", "normalize_vars")
        }
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise BundleError(f"{path}: {name} is {flag!r}, expected true or false; restore the file")
        mels = numbers["num_mel_bins"]
        for name, expected in (("feature_size", mels), ("dither", 0), ("padding_side", "right"), ("padding_value", 0)):
            if (found := settings.get(name, expected)) != expected:
                raise BundleError(f"{path}: {name} is {found!r}; supported is {expected!r}")
        normalize, means, variances = flags.values()
        return cls(numbers["sampling_rate"], mels, normalize and means, normalize and variances)

    def samples_of(self, length: int) -> int:
        """Return the fewest samples that give features of this length."""
        return WINDOW + (length - 1) * HOP

    def features(self, samples: Array) -> npt.NDArray[np.float32]:
        """Compute the features of a recording.

        Parameters
        ----------
        samples : float32 [n]
            Samples in -1..1.

        Returns
        -------
        float32 [X, mels]
            ``input_features`` of the encoder, for X frames.

        Raises
        ------
        InputError
            A column does not vary, so that its variance cannot be 1: the recording is silent, or has one frame.
        """
        values = (np.asarray(samples, np.float32) * LOUDEST).astype(np.float64)
        frames = np.lib.stride_tricks.sliding_window_view(values, WINDOW)[::HOP]
        parts = [self._logs(frames[first : first + FRAMES_AT_ONCE]) for first in range(0, len(frames), FRAMES_AT_ONCE)]
        logs = np.concatenate(parts)
        if self.means:
            logs = logs - logs.mean(axis=0)
        if self.variances:
            spread = logs.std(axis=0)
            if not spread.all():
                raise InputError("the recording is silent, or too short to be normalised; expected sound that varies")
            logs = logs / spread
        return logs

    def _logs(self, frames: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """Compute the logarithms float32 [X, mels] of the powers of frames [X, samples]."""
        centred = frames - frames.mean(axis=1, keepdims=True)
        emphasised = centred.copy()
        emphasised[:, 1:] -= PREEMPHASIS * centred[:, :-1]
        emphasised[:, 0] *= 1 - PREEMPHASIS
        spectrum = np.fft.rfft(emphasised * self.window, TRANSFORMED).astype(np.complex64)
        power = np.abs(spectrum, dtype=np.float64) ** 2  # [X, TRANSFORMED / 2 + 1]
        logs: npt.NDArray[np.float32] = np.log(np.maximum(SMALLEST_POWER, self.filters.T @ power.T)).astype(np.float32)
        return np.ascontiguousarray(logs.T)

    @cached_property
    def window(self) -> npt.NDArray[np.float64]:
        """Povey's window."""
        window: npt.NDArray[np.float64] = np.power(np.hanning(WINDOW), 0.85)
        return window

    @cached_property
    def filters(self) -> npt.NDArray[np.float64]:
        """Filters [TRANSFORMED / 2 + 1, mels], triangular over the frequencies in mel."""
        bins = _mel(self.sampling_rate_hz / TRANSFORMED * np.arange(TRANSFORMED // 2 + 1))
        feet = np.linspace(_mel(LOWEST_HZ), _mel(self.sampling_rate_hz // 2), self.mels + 2)
        widths = np.diff(feet)
        slopes = feet[None, :] - bins[:, None]
        filters: npt.NDArray[np.float64] = np.maximum(
            0, np.minimum(-slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:])
        )
        return filters

    def mask(self, attention_mask: Ints, positions: int, manifest: Manifest) -> Ints:
        """Return the mask int64 [B, N] over the positions that the encoder makes of the frames of a mask [B, X]."""
        counts = np.array([manifest.source_positions(int(length)) for length in attention_mask.sum(axis=1)])
        return (np.arange(positions) < counts[:, None]).astype(np.int64)


def _mel(hz: Any) -> Any:
    return 1127.0 * np.log(1.0 + hz / 700.0)
