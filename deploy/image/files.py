"""Image files as colours uint8 [rows, columns, 3]: PNG, JPEG, TIFF, WebP and BMP, one picture each."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.errors import InputError, first_line
from tightbeam.deploy.image.geometry import INSTALL, MAX_PIXELS

__all__ = ["is_image", "read_image"]

Image = npt.NDArray[np.uint8]
SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp")
FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP")
EXPECTED = "expected a PNG, JPEG, TIFF, WebP or BMP file"
SEVERAL_VIEWS = "MPO"
"""JPEG files of cameras, whose first picture is the photograph, and the others its previews."""


def is_image(path: str) -> bool:
    """True for the name of an image file, rather than of a list of them."""
    return Path(path).suffix.lower() in SUFFIXES


def read_image(source: str | bytes, name: str | None = None) -> Image:
    """Read an image file, upright as its Exif data says, in red, green and blue, over white where it is transparent.

    Parameters
    ----------
    source
        The name of a file, or the content of one.
    name
        What errors call it; by default its name.

    Returns
    -------
    uint8 [rows, columns, 3]
        The colours. Sixteen bits of grey become eight.

    Raises
    ------
    InputError
        The file cannot be read as an image, has several pages, or more than ``MAX_PIXELS`` pixels; or pillow is not
        installed.
    """
    try:
        from PIL import Image as pillow
        from PIL import ImageOps, UnidentifiedImageError
    except ImportError:
        raise InputError(f"reading images needs the package pillow, which is not installed; {INSTALL}") from None
    shown = name if name is not None else source if isinstance(source, str) else "the image"
    data = _bytes_of(source) if isinstance(source, str) else source
    if not data:
        raise InputError(f"{shown} is empty, it has no bytes; {EXPECTED}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, which are limited here, and of odd metadata
            with pillow.open(io.BytesIO(data), formats=FORMATS) as image:
                _check(image, shown)
                return _colours(ImageOps.exif_transpose(image))
    except InputError:
        raise
    except MemoryError:
        raise InputError(f"{shown} is too large for this machine's memory; cut it into pieces") from None
    except pillow.DecompressionBombError:
        raise InputError(f"{shown} has more than {MAX_PIXELS:,} pixels; cut it into pieces, or resize it") from None
    except UnidentifiedImageError:
        raise InputError(f"{shown} cannot be read as an image; {EXPECTED}") from None
    except Exception as error:  # pillow's decoders raise whatever a broken file makes them trip over
        raise InputError(f"{shown} cannot be read as an image ({first_line(error)}); {EXPECTED}") from None


def _bytes_of(path: str) -> bytes:
    if not path.strip():
        raise InputError(f"no file is named; {EXPECTED}")
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no file {path}; {EXPECTED}") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; {EXPECTED}") from None
    except MemoryError:
        raise InputError(f"{path} is too large for this machine's memory; cut it into pieces") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be opened ({reason}); {EXPECTED}") from None


def _check(image: Any, shown: str) -> None:
    """Raise InputError for an image that is not read, before its pixels are decoded."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise InputError(
            f"{shown} has {width} x {height} pixels, expected {MAX_PIXELS:,} at most; cut it into pieces, or resize it"
        )
    pages = getattr(image, "n_frames", 1)
    if pages > 1 and image.format != SEVERAL_VIEWS:
        raise InputError(f"{shown} has {pages} pages; expected one; save each page as a file of its own")


def _colours(image: Any) -> Image:
    from PIL import Image as pillow

    if image.mode.startswith("I;16"):
        image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise InputError(f"the image has numbers of 32 bits as colours (mode {image.mode}); convert it to 8 bits")
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        image = pillow.alpha_composite(pillow.new("RGBA", image.size, (255, 255, 255, 255)), image)
    return np.asarray(image.convert("RGB"))
