"""Mel features, normalised over a recording (Cohere ASR, Canary), in numpy.

Source: transformers 5.24 `CohereAsrFeatureExtractor` and `ParakeetFeatureExtractor`, which compute in float32 with
torch. The first one adds noise (dither) and cuts long recordings. The noise is torch's for the seed that the
recording's length gives: a Mersenne twister and the transform of Box and Muller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.audio.features import mel_filters
from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.errors import BundleError

__all__ = ["NormalizedMel"]

EXTRACTOR, PLAIN = "CohereAsrFeatureExtractor", "ParakeetFeatureExtractor"
"""Extractors; the second one adds no noise and cuts nothing."""
SMALLEST_POWER = 2.0**-24
SMALLEST_SPREAD = 1e-5
"""Added to powers, and to standard deviations."""
FRAMES_AT_ONCE = 1000
"""Frames whose spectra are computed together, so that they stay in the processor's cache."""
NORMAL = 16
"""Normal numbers that torch makes of as many uniform ones."""
SIZES = {
    **{"sampling_rate": 16000, "feature_size": None, "hop_length": 160, "n_fft": 512, "win_length": 400},
    "min_energy_window_samples": 1600,
}
NUMBERS = {"preemphasis": 0.97, "dither": 1e-5, "max_audio_clip_s": 35.0, "overlap_chunk_second": 5.0}


@dataclass(frozen=True)
class NormalizedMel:
    """The feature extractor of a Cohere ASR or Canary checkpoint.

    Attributes
    ----------
    sampling_rate_hz : int
        Samples a second.
    mels : int
        Mel filters, columns of the features.
    hop, window, transformed : int
        Samples between two frames, in a frame, and in the Fourier transform of a frame.
    preemphasis : float
        The share of a sample that is subtracted from the next one.
    dither : float
        Standard deviation of the noise.
    clip : int or None
        Samples of the longest recording that is read whole; None for any number.
    search : int
        Samples before the end of such a part, in which a quiet place to cut is looked for.
    quiet : int
        Samples of such a place.
    """

    sampling_rate_hz: int
    mels: int
    hop: int
    window: int
    transformed: int
    preemphasis: float
    dither: float
    clip: int | None
    search: int
    quiet: int
    input = "input_features"
    """the encoder's input"""
    ignores_padding = True
    """padding does not change how a recording is encoded"""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Numbers of each frame."""
        return (self.mels,)

    @classmethod
    def of(cls, settings: Mapping[str, Any], path: Path) -> NormalizedMel:
        """Read the settings of the file ``path``. Raises BundleError for impossible values."""
        plain = settings.get("feature_extractor_type") == PLAIN
        sizes = {**SIZES, "feature_size": 80 if plain else 128}
        for name, default in sizes.items():
            value = settings.get(name, default)
            if type(value) is not int or not 1 <= value < 2**20:
                raise BundleError(f"{path}: {name} is {value!r}, expected a whole number; restore the file")
        for name, number in NUMBERS.items():
            value = settings.get(name, number)
            if type(value) not in (int, float) or not 0 <= value < 2**20:
                raise BundleError(f"{path}: {name} is {value!r}, expected a number of at least 0; restore the file")
        for name, expected in (("padding_side", "right"), ("padding_value", 0)):
            if (found := settings.get(name, expected)) != expected:
                raise BundleError(f"{path}: {name} is {found!r}; supported is {expected!r}")
        rate, mels, hop, transformed, window, quiet = (settings.get(name, sizes[name]) for name in sizes)
        preemphasis, dither, clip_s, search_s = (float(settings.get(name, NUMBERS[name])) for name in NUMBERS)
        if not 2 <= window <= transformed or transformed % 2:
            raise BundleError(
                f"{path}: n_fft is {transformed}, expected an even number of at least win_length {window}"
            )
        clip: int | None
        clip, search = (max(1, round(seconds * rate)) for seconds in (clip_s, search_s))
        if clip < 2 * hop or search >= clip:
            raise BundleError(
                f"{path}: max_audio_clip_s is {clip_s:g}, expected two frames, and more than overlap_chunk_second"
            )
        if plain:
            dither, clip = 0.0, None
        return cls(rate, mels, hop, window, transformed, preemphasis, dither, clip, search, quiet)

    def samples_of(self, length: int) -> int:
        """Return the fewest samples that give features of this length, or two frames, which a variance needs."""
        return self.hop * max(2, length)

    def cut(self, count: int, read: Callable[[slice], Array]) -> list[slice]:
        """Cut a recording of ``count`` samples in quiet places, as transformers' extractor does.

        ``read`` returns samples.
        """
        assert self.clip is not None
        found, start = [], 0
        while count - start > self.clip:
            end = start + self.clip
            stop = max(start + 1, self._quietest(end - self.search, end, read))
            found.append(slice(start, stop))
            start = stop
        return [*found, slice(start, count)]

    def _quietest(self, first: int, end: int, read: Callable[[slice], Array]) -> int:
        """Return the first sample of the quietest place from ``first`` to ``end``."""
        if end - first <= self.quiet:
            return (first + end) // 2
        places = range(0, end - first - self.quiet, self.quiet)
        samples = read(slice(first, first + len(places) * self.quiet)).reshape(len(places), self.quiet)
        return first + places[int(np.sqrt(np.mean(samples * samples, axis=1)).argmin())]

    def features(self, samples: Array) -> npt.NDArray[np.float32]:
        """Compute the features of a recording.

        Parameters
        ----------
        samples : float32 [n]
            Samples in -1..1.

        Returns
        -------
        float32 [X, mels]
            ``input_features`` of the encoder, for X frames. transformers has one more, which its mask excludes.
        """
        wave = np.asarray(samples, np.float32)
        if self.dither:
            wave = wave + np.float32(self.dither) * _noise(len(wave))
        wave = np.concatenate([wave[:1], wave[1:] - np.float32(self.preemphasis) * wave[:-1]])
        before = self.transformed // 2 - (self.transformed - self.window) // 2
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(wave, (before, self.window)), self.window)
        frames = windows[:: self.hop][: len(wave) // self.hop]
        logs = np.concatenate(
            [self._logs(frames[first : first + FRAMES_AT_ONCE]) for first in range(0, len(frames), FRAMES_AT_ONCE)]
        )
        logs -= logs.mean(axis=0)
        spread = np.sqrt(np.square(logs).sum(axis=0) / (len(logs) - 1))
        normalized: npt.NDArray[np.float32] = (logs / (spread + SMALLEST_SPREAD)).astype(np.float32)
        return normalized

    def _logs(self, frames: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Compute the logarithms [X, mels] of the powers of frames [X, samples]."""
        spectrum = np.fft.rfft(frames * self._hann, self.transformed)
        logs: npt.NDArray[np.float64] = np.log(np.square(np.abs(spectrum)) @ self._filters + SMALLEST_POWER)
        return logs

    @cached_property
    def _hann(self) -> npt.NDArray[np.float64]:
        """Hann's window, symmetric."""
        return np.hanning(self.window)

    @cached_property
    def _filters(self) -> npt.NDArray[np.float32]:
        return mel_filters(self.mels, self.transformed, self.sampling_rate_hz, self.sampling_rate_hz / 2)

    def mask(self, attention_mask: Ints, positions: int, manifest: Manifest) -> Ints:
        """Return the mask int64 [B, N] over the positions that the encoder makes of the frames of a mask [B, X]."""
        counts = np.array([manifest.source_positions(int(length)) for length in attention_mask.sum(axis=1)])
        return (np.arange(positions) < counts[:, None]).astype(np.int64)


def _noise(count: int) -> npt.NDArray[np.float32]:
    """Return ``torch.randn(count)`` of a generator on the CPU with the seed ``count``, at least 16."""
    whole, rest = count - count % NORMAL, NORMAL * bool(count % NORMAL)
    drawn = np.random.RandomState(count).randint(0, 2**32, whole + rest, dtype=np.uint32)
    first, second = (
        ((drawn & 0xFFFFFF).astype(np.float32) / np.float32(2**24)).reshape(-1, 2, NORMAL // 2).swapaxes(0, 1)
    )
    radius, angle = np.sqrt(-2 * np.log(1 - first)), np.float32(2 * np.pi) * second
    normal = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1, NORMAL)
    made = np.empty(count, np.float32)
    made[:whole] = normal[: whole // NORMAL].reshape(-1)
    if rest:  # torch makes the last ones anew
        made[-NORMAL:] = normal[-1]
    return made
