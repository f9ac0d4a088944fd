"""Fuzzing of image files: PNG, JPEG, WebP, BMP and TIFF."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from support.fuzzing import bytes_like, corpus, fuzz
from tightbeam.deploy.inputs.files.image import ImageFile

Image = pytest.importorskip("PIL.Image")
pytestmark = [pytest.mark.slow, pytest.mark.fuzz]


def valid_files() -> list[bytes]:
    """Small pictures of every mode that a format takes; a TIFF of three pages with each compression."""
    colours = np.random.default_rng(0).integers(0, 256, (12, 17, 3), np.uint8)
    picture = Image.fromarray(colours)
    exif = Image.Exif()
    exif[0x0112] = 6
    found = []

    def add(image: Any, kind: str, **more: Any) -> None:
        file = io.BytesIO()
        image.save(file, kind, **more)
        found.append(file.getvalue())

    for mode in ("1", "L", "P", "RGB", "RGBA", "LA"):
        add(picture.convert(mode), "PNG")
    add(picture.convert("P"), "PNG", transparency=3)
    add(Image.fromarray(colours[..., 0].astype(np.uint16) << 7), "PNG")
    for mode in ("L", "RGB", "CMYK"):
        add(picture.convert(mode), "JPEG", exif=exif)
    add(picture, "JPEG", progressive=True, quality=5)
    add(picture, "WEBP", lossless=True)
    add(picture.convert("RGBA"), "WEBP", exif=exif)
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        add(picture.convert(mode), "BMP")
    for compression in (None, "tiff_lzw", "tiff_deflate", "packbits", "jpeg"):
        add(picture, "TIFF", save_all=True, append_images=[picture] * 2, compression=compression)
    add(picture.convert("1"), "TIFF", compression="group4")
    add(Image.fromarray(colours[..., 0].astype(np.float32)), "TIFF")
    return found


def test_image_files() -> None:
    def run(data: bytes) -> None:
        image = ImageFile(data, most_pages=16, most_pixels=1 << 20)
        try:
            for page in range(len(image)):
                assert image.read(page).dtype == np.uint8
        finally:
            image.close()

    known = [*valid_files(), *corpus("images")]
    fuzz("images", bytes_like(known), run, first=known)
