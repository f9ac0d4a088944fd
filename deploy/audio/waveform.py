"""Samples as features: the feature extractor of models whose encoder takes a recording as it is (Moonshine).

Source: transformers 5.24 `Wav2Vec2FeatureExtractor`. The results are equal bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.errors import BundleError

__all__ = ["Waveform"]

EXTRACTOR = "Wav2Vec2FeatureExtractor"


@dataclass(frozen=True)
class Waveform:
    """The feature extractor of a checkpoint that takes samples.

    Attributes
    ----------
    sampling_rate_hz : int
        Samples a second.
    normalize : bool
        Give each recording mean 0 and variance 1.
    """

    sampling_rate_hz: int
    normalize: bool
    input = "input_values"
    """the encoder's input"""
    row_shape: tuple[int, ...] = ()
    """shape of each sample"""
    ignores_padding = False
    """padding changes how a recording is encoded"""
    clip = cut = None
    """transformers' extractor cuts no recording"""

    @classmethod
    def of(cls, settings: Mapping[str, Any], path: Path) -> Waveform:
        """Read the settings of the file ``path``. Raises BundleError for impossible values."""
        rate, width = settings.get("sampling_rate", 16000), settings.get("feature_size", 1)
        if type(rate) is not int or rate < 1:
            raise BundleError(f"{path}: sampling_rate is {rate!r}, expected a whole number; restore the file")
        if width != 1:
            raise BundleError(f"{path}: feature_size is {width!r}, expected 1: samples of one channel")
        normalize = settings.get("do_normalize", True)
        if not isinstance(normalize, bool):
            raise BundleError(f"{path}: do_normalize is {normalize!r}, expected true or false; restore the file")
        for name, expected in (("padding_side", "right"), ("padding_value", 0)):
            if (value := settings.get(name, expected)) != expected:
                raise BundleError(f"{path}: {name} is {value!r}; supported is {expected!r}")
        return cls(rate, normalize)

    def samples_of(self, length: int) -> int:
        """Return the fewest samples that give features of this length."""
        return length

    def features(self, samples: Array) -> npt.NDArray[np.float32]:
        """Return ``input_values`` float32 [X] of a recording's samples [X]."""
        values: npt.NDArray[np.float32] = np.asarray(samples, np.float32)
        if not self.normalize:
            return values
        normalized: npt.NDArray[np.float32] = ((values - values.mean()) / np.sqrt(values.var() + 1e-7)).astype(
            np.float32
        )
        return normalized

    def mask(self, attention_mask: Ints, positions: int, manifest: Manifest) -> Ints:
        """Return the mask int64 [B, N] over positions: the value at each position's first sample in a mask [B, X]."""
        stride = math.prod(stride for _, stride, _ in manifest.convolutions)
        return np.ascontiguousarray(attention_mask[:, ::stride][:, :positions])
