"""Image processors of ViT, DeiT and Donut checkpoints: from an image to the pixels that the encoder takes.

Source: transformers 5.24, the processors on pillow (`ViTImageProcessorPil`, `DeiTImageProcessorPil`,
`DonutImageProcessorPil`), with results equal bit for bit. The processors on torchvision, which resize with another
library, were not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.errors import BundleError
from tightbeam.deploy.image.geometry import aligned, cropped, padded, resized, shortest_edge, thumbnail

__all__ = ["ImageProcessor"]

Pixels = npt.NDArray[np.float32]
Image = npt.NDArray[np.uint8]
COLOURS = 3
ON, OFF = True, False
DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": {"size": 224, "resample": 2},
    "DeiT": {"size": 256, "resample": 3, "crop_size": 224, "do_center_crop": ON},
    "Donut": {"size": (1920, 2560), "resample": 2, "do_pad": ON, "do_thumbnail": ON, "do_align_long_axis": OFF},
}
"""Kinds of image processor, with the defaults that differ from ``COMMON``."""
COMMON: dict[str, Any] = {
    **{"do_resize": ON, "do_rescale": ON, "do_normalize": ON, "do_center_crop": OFF, "crop_size": None},
    **{"rescale_factor": 1 / 255, "image_mean": (0.5,) * COLOURS, "image_std": (0.5,) * COLOURS, "do_pad": OFF},
    **{"do_thumbnail": OFF, "do_align_long_axis": OFF},
}
ENDINGS = ("ImageProcessor", "ImageProcessorFast", "ImageProcessorPil", "FeatureExtractor")
MOST_FILTERS = 6
"""pillow's resampling filters are 0 to 5."""


@dataclass(frozen=True)
class ImageProcessor:
    """The image processor of a checkpoint.

    Attributes
    ----------
    kind : str
        "ViT", "DeiT" or "Donut": the beginning of the name of transformers' class.
    height, width : int
        Size of the result in pixels.
    size : (int, int)
        Height and width that images are resized to, or for Donut fitted into.
    resample : int
        The resampling filter, as pillow numbers them.
    fit : bool
        Keep the aspect ratio, and pad with black on both sides (Donut).
    thumbnail, align, crop : bool
        Shrink images larger than ``size``; rotate images whose longer side differs; cut out the middle.
    resize, rescale, normalize : bool
        Whether each of these steps is done.
    factor : float
        Factor of the colours, usually 1/255.
    mean, std : float32 [3]
        Mean that is subtracted from the scaled colours, and deviation that they are divided by.
    """

    kind: str
    height: int
    width: int
    size: tuple[int, int]
    resample: int
    fit: bool
    thumbnail: bool
    align: bool
    crop: bool
    resize: bool
    rescale: bool
    normalize: bool
    factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, settings: Mapping[str, Any], path: Path) -> ImageProcessor:
        """Read the settings of the file ``path``.

        Raises BundleError for another processor's settings, for impossible values, and for settings that give images of
        different sizes.
        """
        kind = _kind(settings, path)
        own = {**COMMON, **DEFAULTS[kind], **{name: value for name, value in settings.items() if value is not None}}
        flags = {name: own[name] for name in own if name.startswith("do_") and name in COMMON}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise BundleError(f"{path}: {name} is {value!r}, expected true or false; restore the file")
        fit = kind == "Donut"
        foreign = ("do_pad", "do_thumbnail", "do_align_long_axis")
        if not fit and any(flags[name] for name in foreign):
            name = next(name for name in foreign if flags[name])
            raise BundleError(f"{path}: {name} is true, which {kind} images are not trained with; set it to false")
        size = _size(own["size"], "size", path, width_first=fit)
        crop = _size(own["crop_size"], "crop_size", path) if flags["do_center_crop"] else None
        if crop is None and not (flags["do_pad"] if fit else flags["do_resize"]):
            missing = "do_pad" if fit else "do_resize"
            raise BundleError(f"{path}: {missing} is false; the encoder takes images of one size; set it to true")
        resample = own["resample"]
        if type(resample) is not int or not 0 <= resample < MOST_FILTERS:
            raise BundleError(f"{path}: resample is {resample!r}, expected a filter of pillow, 0 to {MOST_FILTERS - 1}")
        factor = own["rescale_factor"]
        if not _is_number(factor):
            raise BundleError(f"{path}: rescale_factor is {factor!r}, expected a number such as 1/255")
        mean, std = (_colours(own[name], name, path) for name in ("image_mean", "image_std"))
        if 0 in std:
            raise BundleError(
                f"{path}: image_std is {list(std)}, and colours are divided by it; expected numbers other than 0"
            )
        height, width = crop or size
        return cls(
            kind,
            height,
            width,
            size,
            resample,
            fit and flags["do_pad"],
            flags["do_thumbnail"],
            flags["do_align_long_axis"],
            crop is not None,
            flags["do_resize"],
            flags["do_rescale"],
            flags["do_normalize"],
            float(factor),
            mean,
            std,
        )

    def pixels(self, image: Image) -> Pixels:
        """Compute the pixels of one image.

        Parameters
        ----------
        image : uint8 [rows, columns, 3]
            Red, green and blue.

        Returns
        -------
        float32 [3, height, width]
            ``pixel_values`` of the encoder.

        Raises
        ------
        InputError
            The image is too narrow for the model's size, or pillow is not installed.
        """
        if self.align:
            image = aligned(image, self.size)
        if self.resize:
            to = shortest_edge(image, min(self.size)) if self.fit else self.size
            image = resized(image, to, self.resample)
        if self.thumbnail:
            image = resized(image, thumbnail(image, self.size), self.resample)
        if self.fit:
            image = padded(image, self.size)
        if self.crop:
            image = cropped(image, (self.height, self.width))
        colours = np.moveaxis(image, -1, 0)  # [3, height, width]
        pixels = (colours.astype(np.float64) * self.factor if self.rescale else colours).astype(np.float32)
        if self.normalize:
            mean, std = (np.array(numbers, np.float32)[:, None, None] for numbers in (self.mean, self.std))
            pixels = (pixels - mean) / std
        return np.ascontiguousarray(pixels)


def _kind(settings: Mapping[str, Any], path: Path) -> str:
    """Return the kind of processor that the settings name, a key of ``DEFAULTS``."""
    name = settings.get("image_processor_type", settings.get("feature_extractor_type"))
    for kind in DEFAULTS:
        if name in [f"{kind}{ending}" for ending in ENDINGS]:
            return kind
    expected = ", ".join(f"{kind}ImageProcessor" for kind in DEFAULTS)
    raise BundleError(f"{path}: image_processor_type is {name!r}, expected one of {expected}; restore the file")


def _size(value: Any, name: str, path: Path, *, width_first: bool = False) -> tuple[int, int]:
    """Read height and width from a setting: one number for both, two in this order, or both by name."""
    numbers: Any = None
    if isinstance(value, Mapping):
        numbers = [value.get("height"), value.get("width")] if set(value) == {"height", "width"} else None
    elif isinstance(value, list | tuple):
        numbers = list(reversed(value)) if width_first else list(value)
    elif value is not None:
        numbers = [value, value]
    if not numbers or len(numbers) != 2 or not all(type(each) is int and 1 <= each < 2**16 for each in numbers):
        raise BundleError(f"{path}: {name} is {value!r}, expected a height and a width in pixels; restore the file")
    return numbers[0], numbers[1]


def _colours(value: Any, name: str, path: Path) -> tuple[float, ...]:
    numbers = value if isinstance(value, list | tuple) else [value] * COLOURS
    if len(numbers) != COLOURS or not all(map(_is_number, numbers)):
        raise BundleError(f"{path}: {name} is {value!r}, expected a number for each of {COLOURS} colours")
    return tuple(float(each) for each in numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))
