"""Patches of images of any size: the image processor of Pix2Struct.

Source: transformers 5.24 `Pix2StructImageProcessorPil`. Resizing is torch's bilinear filter with antialias, and results
differ only by rounding. transformers pads missing patches with zeros, which are left out here, as the mask hides them.
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
from tightbeam.deploy.errors import BundleError, InputError
from tightbeam.deploy.text.token_ids import as_array, finite_float32

__all__ = ["IDS", "PATCHES", "PatchProcessor"]

Floats = npt.NDArray[np.float32]
PATCHES = "Pix2Struct"
COLOURS = 3
IDS = 2
"""Numbers before the colours of a patch: its row and its column, from 1."""


@dataclass(frozen=True)
class PatchProcessor:
    """The image processor of a Pix2Struct checkpoint.

    Attributes
    ----------
    patch : (int, int)
        Height and width of a patch in pixels.
    most : int
        The most patches of an image.
    normalize : bool
        Give the colours of each image mean 0 and variance 1.
    """

    patch: tuple[int, int]
    most: int
    normalize: bool
    kind = PATCHES

    @classmethod
    def of(cls, settings: Mapping[str, Any], path: Path) -> PatchProcessor:
        """Read the settings of the file ``path``. Raises BundleError for impossible values."""
        size = settings.get("patch_size", {"height": 16, "width": 16})
        most = settings.get("max_patches", 2048)
        sides = [size.get("height"), size.get("width")] if isinstance(size, Mapping) else []
        if len(sides) != 2 or not all(type(side) is int and 1 <= side < 2**10 for side in sides):
            raise BundleError(f"{path}: patch_size is {size!r}, expected a height and a width in pixels")
        if type(most) is not int or not 1 <= most < 2**15:
            raise BundleError(f"{path}: max_patches is {most!r}, expected a whole number; restore the file")
        flags = {name: settings.get(name, name != "is_vqa") for name in ("do_normalize", "is_vqa")}
        for name, flag in flags.items():
            if not isinstance(flag, bool):
                raise BundleError(f"{path}: {name} is {flag!r}, expected true or false; restore the file")
        if flags["is_vqa"]:
            raise BundleError(
                f"{path}: is_vqa is true: the question is drawn into the image with a font, which is not supported; "
                "expected a model that takes only an image"
            )
        height, width = (int(side or 0) for side in sides)
        return cls((height, width), most, flags["do_normalize"])

    @property
    def width(self) -> int:
        """Numbers of a patch, row and column included."""
        return IDS + COLOURS * self.patch[0] * self.patch[1]

    def pixels(self, image: npt.NDArray[np.uint8]) -> Floats:
        """Compute the patches of one image.

        Parameters
        ----------
        image : uint8 [rows, columns, 3]
            Red, green and blue.

        Returns
        -------
        float32 [X, 2 + 3 height width]
            ``flattened_patches`` of the encoder, without padding: the row and column of each patch, from 1, and its
            colours.
        """
        colours: Floats = np.moveaxis(image, -1, 0).astype(np.float32)  # [3, height, width]
        if self.normalize:
            spread = max(float(np.std(colours)), 1.0 / math.sqrt(colours.size))
            colours = ((colours - np.mean(colours)) / np.float32(spread)).astype(np.float32)
        rows, columns = self._counts(*colours.shape[1:])
        height, width = self.patch
        resized = _resampled(colours, columns * width)
        resized = np.swapaxes(_resampled(np.swapaxes(resized, 1, 2), rows * height), 1, 2)
        by_patch = resized.reshape(COLOURS, rows, height, columns, width).transpose(1, 3, 2, 4, 0)
        patches = np.empty((rows * columns, self.width), np.float32)
        patches[:, 0], patches[:, 1] = np.repeat(np.arange(rows) + 1, columns), np.tile(np.arange(columns) + 1, rows)
        patches[:, IDS:] = by_patch.reshape(rows * columns, -1)
        return patches

    def _counts(self, height: int, width: int) -> tuple[int, int]:
        """Return the most rows and columns of patches in the proportions of an image of this size."""
        scale = (self.most * (self.patch[0] / height) * (self.patch[1] / width)) ** 0.5
        rows = max(min(int(scale * height / self.patch[0]), self.most), 1)
        return rows, max(min(int(scale * width / self.patch[1]), self.most), 1)

    def checked(self, patches: Any) -> tuple[Array, Ints]:
        """Check a batch of patches as ``model.generate`` takes it.

        Parameters
        ----------
        patches : float32 [B, X, 2 + 3 height width]
            Patches of each image, padded with zeros.

        Returns
        -------
        patches : float32 [B, N, 2 + 3 height width]
        mask : int64 [B, N]
            1 at patches, 0 at padding.

        Raises
        ------
        InputError
            A shape, type or value is wrong.
        """
        batch = as_array("flattened_patches", patches)
        if batch.ndim != 3 or batch.shape[2] != self.width or not batch.size or batch.shape[1] > self.most:
            raise InputError(
                f"flattened_patches is {list(batch.shape)}, expected [B, X, {self.width}], X up to {self.most}; make "
                "each with Runner.image_processor.pixels"
            )
        batch = finite_float32("flattened_patches", batch)
        mask = (batch.sum(axis=-1) != 0).astype(np.int64)
        ids = batch[:, :, :IDS]
        if not ((ids >= 0) & (ids <= self.most)).all() or (np.diff(mask) > 0).any() or not mask[:, 0].all():
            raise InputError(
                f"flattened_patches has rows or columns beyond 0 to {self.most}, or zeros before a patch; expected "
                "patches, and zeros behind them"
            )
        N = int(mask.sum(axis=1).max())
        return np.ascontiguousarray(batch[:, :N]), np.ascontiguousarray(mask[:, :N])


def _resampled(values: Floats, size: int) -> Floats:
    """Resample the last axis of values [..., X] to ``size`` by a triangle filter as wide as two steps of the result."""
    X, half = values.shape[-1], np.float32(0.5)
    scale = np.float32(X / size)  # torch computes places and weights in float32, which moves them by some 0.0001
    reach = max(scale, np.float32(1))
    centres = scale * (np.arange(size, dtype=np.float32) + half)
    first = np.maximum((centres - reach + half).astype(np.int64), 0)
    ends = np.minimum((centres + reach + half).astype(np.int64), X)
    places = first[:, None] + np.arange(int((ends - first).max()))  # [size, taps]
    distances = (places.astype(np.float32) - centres[:, None] + half) * (np.float32(1) / reach)
    weights = np.maximum(0, 1 - np.abs(distances)) * (places < ends[:, None])
    weights /= weights.sum(axis=1, keepdims=True)
    found = np.zeros((*values.shape[:-1], size), np.float32)
    for tap in range(places.shape[1]):
        found += weights[:, tap] * values[..., np.minimum(places[:, tap], X - 1)]
    return found
