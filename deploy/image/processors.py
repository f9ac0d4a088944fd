"""Choice of the image processor by its settings, and the check of pixels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.bundle.settings_file import read_settings
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.image.patches import PATCHES, PatchProcessor
from tightbeam.deploy.image.processor import ImageProcessor
from tightbeam.deploy.text.token_ids import as_array, finite_float32

__all__ = ["AnyProcessor", "check_pixels", "processor_of", "read_processor"]

AnyProcessor = ImageProcessor | PatchProcessor


def read_processor(path: Path) -> AnyProcessor:
    """Read a preprocessor_config.json. Raises BundleError if it cannot be read, or like `processor_of`."""
    return processor_of(read_settings(path), path)


def processor_of(settings: Mapping[str, Any], path: Path) -> AnyProcessor:
    """Make the image processor that the settings in ``path`` name. Raises BundleError for impossible values."""
    name = settings.get("image_processor_type", settings.get("feature_extractor_type"))
    kind = PatchProcessor if isinstance(name, str) and name.startswith(PATCHES) else ImageProcessor
    return kind.of(settings, path)


def check_pixels(processor: AnyProcessor, pixel_values: Any, positions: int) -> tuple[Array, Ints]:
    """Check a batch of pixels [B, 3, height, width], or of patches [B, N, width].

    Returns it as float32, with its mask int64 [B, N]. ``positions`` is N for pixels. Raises InputError for another
    shape, and for NaN or infinity.
    """
    if isinstance(processor, PatchProcessor):
        return processor.checked(pixel_values)
    pixels = as_array("pixel_values", pixel_values)
    shape = (3, processor.height, processor.width)
    if pixels.ndim != 4 or pixels.shape[1:] != shape or not len(pixels):
        raise InputError(
            f"pixel_values is {list(pixels.shape)}, expected [B, {', '.join(map(str, shape))}]; make them with "
            "Runner.image_processor.pixels"
        )
    return finite_float32("pixel_values", pixels), np.ones((len(pixels), positions), dtype=np.int64)
