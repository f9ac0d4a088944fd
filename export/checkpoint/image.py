"""An image processor's settings, and drawn pages to compare a model that reads images with torch on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from tightbeam.deploy.errors import BundleError
from tightbeam.deploy.image.processor import ImageProcessor
from tightbeam.export.checkpoint.config import IMAGES, feature_settings
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tightbeam.export.errors import ExportError
from tightbeam.export.families.image_encoders import image_size

__all__ = ["ImageSamples", "check_image", "image_samples"]

SHAPES = ((90, 700), (400, 300), (64, 64), (233, 517))
"""Rows and columns of the pages: a line of text, a page on its side, a small square, odd sizes."""


def check_image(checkpoint: Checkpoint) -> None:
    """Raise ExportError where an image processor's settings do not match the model's config."""
    if checkpoint.family.reads_images:
        image_processor(checkpoint)


def image_processor(checkpoint: Checkpoint) -> ImageProcessor:
    """The checkpoint's image processor. Raises ExportError where the model takes images of another size."""
    assert checkpoint.family.image_config is not None
    path, settings = feature_settings(checkpoint.path, checkpoint.family.image_config, IMAGES)
    try:
        processor = ImageProcessor.of(settings, path)
    except BundleError as error:
        raise ExportError(str(error)) from None
    height, width = image_size(checkpoint.config.encoder)
    if (processor.height, processor.width) != (height, width):
        raise ExportError(
            f"{path}: makes images of {processor.width} x {processor.height} pixels, config.json expects "
            f"{width} x {height}; give the file that belongs to these weights"
        )
    return processor


@dataclass(frozen=True)
class ImageSamples:
    """Pages to compare a model on."""

    rows: tuple[npt.NDArray[np.uint8], ...]
    """B images [rows, columns, 3]"""
    features: torch.Tensor
    """float32 [B, 3, height, width], by transformers' own image processor"""
    as_ids = False
    name = "pixel_values"
    """input of the encoder"""

    def lines(self, folder: Path) -> tuple[str, ...]:
        """Input lines for ``run-model``: paths of image files, written into ``folder``."""
        from PIL import Image

        paths = [folder / f"{index}.png" for index in range(len(self.rows))]
        for path, row in zip(paths, self.rows, strict=True):
            Image.fromarray(row).save(path)
        return tuple(str(path) for path in paths)

    def arguments(self, dtype: torch.dtype) -> dict[str, Any]:
        """Arguments of ``model.generate`` for the same input."""
        return {"pixel_values": self.features.to(dtype)}

    def shown(self, text: str) -> str:
        """A decoded text as ``run-model`` prints it."""
        return text


def image_samples(checkpoint: Checkpoint) -> ImageSamples:
    """Drawn pages: dark strokes in lines on light paper with a gradient of colour, and some noise.

    Raises ExportError without the package pillow.
    """
    own = image_processor(checkpoint)
    generator = np.random.default_rng(0)
    rows = tuple(_page(generator, height, width) for height, width in SHAPES)
    try:
        with quiet_transformers():
            # The one on pillow wherever torchvision is installed too: they resize differently.
            processor_class = getattr(transformers, f"{own.kind}ImageProcessorPil")
            processor = processor_class.from_pretrained(checkpoint.path, local_files_only=True)
            pixels = processor(list(rows), input_data_format="channels_last", return_tensors="pt").pixel_values
    except ImportError:
        raise ExportError(
            "comparing a model that reads images needs the package pillow; pip install 'tightbeam[image]', or export "
            "with --no-check"
        ) from None
    return ImageSamples(rows, pixels)


def _page(generator: np.random.Generator, height: int, width: int) -> npt.NDArray[np.uint8]:
    """An image uint8 [height, width, 3] of lines of strokes."""
    across, down = np.arange(width) / width, np.arange(height)[:, None] / height
    paper = 200 + 40 * across[None, :, None] * generator.uniform(0, 1, 3) + 15 * down[:, :, None]
    line = max(8, height // 6)
    strokes = generator.uniform(size=(-(-height // line), -(-width // 4))) < 0.45
    ink = np.kron(strokes, np.ones((line, 4)))[:height, :width] * (np.arange(height)[:, None] % line < 0.6 * line)
    page = paper - 170 * ink[:, :, None] + generator.normal(0, 6, (height, width, 3))
    return np.clip(np.round(page), 0, 255).astype(np.uint8)
