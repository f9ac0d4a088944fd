"""An image processor's settings, and drawn pages for the comparison of an image model with torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from tightbeam.deploy.errors import BundleError
from tightbeam.deploy.image.patches import IDS, PatchProcessor
from tightbeam.deploy.image.processors import AnyProcessor, processor_of
from tightbeam.export.checkpoint.config import IMAGES, feature_settings
from tightbeam.export.checkpoint.load import Checkpoint
from tightbeam.export.checkpoint.quiet import quiet_transformers
from tightbeam.export.errors import ExportError
from tightbeam.export.families.image_encoders import image_size

__all__ = ["ImageSamples", "check_image", "image_samples"]

SHAPES = ((90, 700), (400, 300), (64, 64), (233, 517))
"""Rows and columns of the pages: a line of text, a page on its side, a small square, odd sizes."""


def check_image(checkpoint: Checkpoint) -> None:
    """Raise ExportError if an image processor's settings do not match the model's config."""
    if checkpoint.family.reads_images:
        image_processor(checkpoint)


def image_processor(checkpoint: Checkpoint) -> AnyProcessor:
    """The checkpoint's image processor. Raises ExportError if the model takes images of another size."""
    assert checkpoint.family.image_config is not None
    path, settings = feature_settings(checkpoint.path, checkpoint.family.image_config, IMAGES)
    try:
        processor = processor_of(settings, path)
    except BundleError as error:
        raise ExportError(str(error)) from None
    if isinstance(processor, PatchProcessor):
        _check_patches(processor, checkpoint.config.vision_config, path)
        return processor
    if checkpoint.family.takes_patches:
        raise ExportError(
            f"{path}: makes pixels, config.json expects patches; give the file that belongs to these weights"
        )
    height, width = image_size(checkpoint.config.encoder)
    if (processor.height, processor.width) != (height, width):
        raise ExportError(
            f"{path}: makes images of {processor.width} x {processor.height} pixels, config.json expects "
            f"{width} x {height}; give the file that belongs to these weights"
        )
    return processor


def _check_patches(processor: PatchProcessor, config: Any, path: Path) -> None:
    """Raise ExportError if the model takes patches of another size, or has fewer rows and columns."""
    expected = config.patch_embed_hidden_size
    if (found := processor.width - IDS) != expected:
        raise ExportError(
            f"{path}: makes patches of {found} numbers, config.json expects {expected}; give the file that belongs to "
            "these weights"
        )
    if processor.most >= config.seq_len:
        raise ExportError(
            f"{path}: max_patches is {processor.most}, config.json has rows and columns up to {config.seq_len - 1}; "
            "give the file that belongs to these weights"
        )


@dataclass(frozen=True)
class ImageSamples:
    """Pages for the comparison of a model."""

    rows: tuple[npt.NDArray[np.uint8], ...]
    """B images [rows, columns, 3]"""
    features: torch.Tensor
    """float32 [B, 3, height, width], or patches [B, N, width], by transformers' own image processor"""
    mask: torch.Tensor | None = None
    """int64 [B, N], of patches"""
    as_ids = False

    @property
    def name(self) -> str:
        """Input of the encoder."""
        return "pixel_values" if self.mask is None else "flattened_patches"

    def inputs(self, folder: Path) -> tuple[str, ...]:
        """Inputs of JSON lines for ``run-model``: paths of image files, written into ``folder``."""
        from PIL import Image

        paths = [folder / f"{index}.png" for index in range(len(self.rows))]
        for path, row in zip(paths, self.rows, strict=True):
            Image.fromarray(row).save(path)
        return tuple(str(path) for path in paths)

    def arguments(self, dtype: torch.dtype) -> dict[str, Any]:
        """Arguments of ``model.generate`` for the same input."""
        masked = {} if self.mask is None else {"attention_mask": self.mask}
        return {self.name: self.features.to(dtype), **masked}

    def shown(self, text: str) -> str:
        """A decoded text as ``run-model`` prints it."""
        return text


def image_samples(checkpoint: Checkpoint) -> ImageSamples:
    """Drawn pages: dark strokes in lines on light paper with a gradient of colour, and some noise."""
    own = image_processor(checkpoint)
    generator = np.random.default_rng(0)
    rows = tuple(_page(generator, height, width) for height, width in SHAPES)
    with quiet_transformers():
        # The one on pillow wherever torchvision is installed too: they resize differently.
        processor_class = getattr(transformers, f"{own.kind}ImageProcessorPil")
        processor = processor_class.from_pretrained(checkpoint.path, local_files_only=True)
        made = processor(list(rows), input_data_format="channels_last", return_tensors="pt")
    if isinstance(own, PatchProcessor):
        return ImageSamples(rows, made.flattened_patches, made.attention_mask.long())
    return ImageSamples(rows, made.pixel_values)


def _page(generator: np.random.Generator, height: int, width: int) -> npt.NDArray[np.uint8]:
    """An image uint8 [height, width, 3] of lines of strokes."""
    across, down = np.arange(width) / width, np.arange(height)[:, None] / height
    paper = 200 + 40 * across[None, :, None] * generator.uniform(0, 1, 3) + 15 * down[:, :, None]
    line = max(8, height // 6)
    strokes = generator.uniform(size=(-(-height // line), -(-width // 4))) < 0.45
    ink = np.kron(strokes, np.ones((line, 4)))[:height, :width] * (np.arange(height)[:, None] % line < 0.6 * line)
    page = paper - 170 * ink[:, :, None] + generator.normal(0, 6, (height, width, 3))
    return np.clip(np.round(page), 0, 255).astype(np.uint8)
