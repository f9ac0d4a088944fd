"""Image files as colours uint8 [rows, columns, 3]: one picture of PNG, JPEG, WebP and BMP, or the pages of a TIFF."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.errors import NO_NAME, InputError, first_line, open_fault
from tightbeam.deploy.image.geometry import INSTALL, MAX_PIXELS
from tightbeam.deploy.inputs.files.image_content import MorePages, image_content
from tightbeam.deploy.inputs.files.regular import not_regular

__all__ = ["ImageFile", "is_image"]

Image = npt.NDArray[np.uint8]
SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp")
EXPECTED = "expected a PNG, JPEG, TIFF, WebP or BMP file"
TURNS = (None, None, 0, 3, 1, 5, 4, 6, 2)
"""The transposition that undoes each of Exif's orientations, as pillow numbers it."""


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
            try:
                content = image_content(data, most_pages, most_pixels)
            except MorePages:
                raise InputError(f"{self._shown} has more than {most_pages} pages; cut it into pieces") from None
            self._orientations, self._bytes = content.orientations, len(content.data)
            self._image = pillow.open(io.BytesIO(content.data), formats=[content.kind])
            pictures = getattr(self._image, "n_frames", 1) if content.kind != "TIFF" else 1
        if pictures > 1:
            problem = f"{self._shown} is an animation of {pictures} pictures, expected one"
            raise InputError(f"{problem}; save those that count as files")

    def __len__(self) -> int:
        """Pages."""
        return len(self._orientations)

    def read(self, page: int) -> Image:
        """Decode a page to red, green and blue, turned upright by its metadata. Transparent places become white.

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
        from PIL.Image import Transpose

        shown = self._shown if len(self) == 1 else f"{self._shown}, page {page + 1}"
        with _one_line(shown):
            self._image.seek(page)
            width, height = self._image.size
            if width * height > self._most_pixels:
                raise InputError(
                    f"{shown} has {width} x {height} pixels, expected {self._most_pixels:,} at most; cut it into "
                    "pieces, or resize it"
                )
            # pillow joins what its decoders cannot read yet, again with each block, so blocks are as long as may be
            most = max(self._image.decodermaxblock, self._bytes // max(len(self._image.tile), 1))
            self._image.decodermaxblock = most
            orientation = self._orientations[page]
            turn = TURNS[orientation] if orientation < len(TURNS) else None
            return _colours(self._image if turn is None else self._image.transpose(Transpose(turn)), shown)

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
