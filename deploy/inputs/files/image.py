"""Image files as colours uint8 [rows, columns, 3]: one picture of PNG, JPEG, WebP and BMP, or the pages of a TIFF."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as count_from
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.errors import NO_NAME, InputError, first_line, open_fault
from tightbeam.deploy.image.geometry import INSTALL, MAX_PIXELS
from tightbeam.deploy.inputs.files.regular import not_regular

__all__ = ["ImageFile", "is_image"]

Image = npt.NDArray[np.uint8]
SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp")
FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "BMP")
EXPECTED = "expected a PNG, JPEG, TIFF, WebP or BMP file"
SEVERAL_VIEWS = "MPO"
"""Format of cameras' JPEG files: the first picture is the photograph, and the others are its previews."""
SUBFILE_TYPE, PREVIEW_OR_MASK = 254, 1 | 4
"""The TIFF tag, and its bits, that mark a picture as a smaller copy or a transparency mask instead of a page."""


def is_image(path: str) -> bool:
    """True for the name of an image file, rather than of a list of them."""
    return Path(path).suffix.lower() in SUFFIXES


class ImageFile:
    """An open image file, whose pages are decoded one by one.

    Parameters
    ----------
    source : str or bytes
        The name of a file, or its content.
    most_pages : int
        The most pictures of a TIFF. The reader stops behind them.
    most_pixels : int
        The most pixels of a page.

    Raises
    ------
    InputError
        The file cannot be read as an image, is an animation, or has too many pages; or pillow is not installed.
    """

    def __init__(self, source: str | bytes, *, most_pages: float = math.inf, most_pixels: int = MAX_PIXELS) -> None:
        try:
            from PIL import Image as pillow
        except ImportError:
            raise InputError(f"reading images needs the package pillow, which is not installed; {INSTALL}") from None
        self._shown, self._most_pixels = source if isinstance(source, str) else "the image", most_pixels
        data = _bytes_of(source) if isinstance(source, str) else source
        if not data:
            raise InputError(f"{self._shown} is empty, it has no bytes; {EXPECTED}")
        with _one_line(self._shown):
            self._image = pillow.open(io.BytesIO(data), formats=FORMATS)
            self._frames = _pages(self._image, self._shown, most_pages)

    def __len__(self) -> int:
        """Pages."""
        return len(self._frames)

    def read(self, page: int) -> Image:
        """Decode a page to red, green and blue, turned upright by its Exif data. Transparent places become white.

        Parameters
        ----------
        page
            Its number, from 0.

        Returns
        -------
        uint8 [rows, columns, 3]
            The colours. Sixteen bits of grey become eight.

        Raises
        ------
        InputError
            The page cannot be decoded, or has too many pixels.
        """
        from PIL import ImageOps

        shown = self._shown if len(self) == 1 else f"{self._shown}, page {page + 1}"
        with _one_line(shown):
            self._image.seek(self._frames[page])
            width, height = self._image.size
            if width * height > self._most_pixels:
                raise InputError(
                    f"{shown} has {width} x {height} pixels, expected {self._most_pixels:,} at most; cut it into "
                    "pieces, or resize it"
                )
            return _colours(ImageOps.exif_transpose(self._image), shown)

    def close(self) -> None:
        """Free the content."""
        self._image.close()


@contextmanager
def _one_line(shown: str) -> Iterator[None]:
    """Raise InputError, which calls the image ``shown``, for whatever pillow raises."""
    from PIL import Image as pillow
    from PIL import UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about large images, which are limited here, and odd metadata
            yield
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
        raise InputError(f"{NO_NAME}; {EXPECTED}")
    try:
        if kind := not_regular(path):
            raise InputError(f"{path} is {kind}; {EXPECTED}")
        return Path(path).read_bytes()
    except InputError:
        raise
    except MemoryError:
        raise InputError(f"{path} is too large for this machine's memory; cut it into pieces") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{open_fault(path, error)}; {EXPECTED}") from None


def _pages(image: Any, shown: str, most: float) -> list[int]:
    """Return the numbers of the pictures that are pages. Raises InputError for an animation, or too many pictures."""
    if image.format != "TIFF":
        count = getattr(image, "n_frames", 1)
        if count > 1 and image.format != SEVERAL_VIEWS:
            problem = f"{shown} is an animation of {count} pictures, expected one"
            raise InputError(f"{problem}; save those that count as files")
        return [0]
    pages = []
    for number in count_from(0):  # the number of pictures is unknown until the last one is read
        try:
            image.seek(number)
        except EOFError:
            break
        if number >= most:
            raise InputError(f"{shown} has more than {most} pages; cut it into pieces")
        if not image.tag_v2.get(SUBFILE_TYPE, 0) & PREVIEW_OR_MASK:
            pages.append(number)
    return pages or [0]


def _colours(image: Any, shown: str) -> Image:
    from PIL import Image as pillow

    if image.mode.startswith("I;16"):
        image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise InputError(f"{shown} has numbers of 32 bits as colours (mode {image.mode}); convert it to 8 bits")
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        image = pillow.alpha_composite(pillow.new("RGBA", image.size, (255, 255, 255, 255)), image)
    return np.asarray(image.convert("RGB"))
