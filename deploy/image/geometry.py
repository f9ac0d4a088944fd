"""Geometry of images uint8 [rows, columns, 3]: resizing with pillow; rotation, padding and cropping in numpy.

Source: transformers 5.24, `image_transforms.py` and `DonutImageProcessorPil`, with the same rounding.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.errors import InputError

__all__ = ["MAX_PIXELS", "aligned", "cropped", "padded", "resized", "shortest_edge", "thumbnail"]

Image = npt.NDArray[np.uint8]
MAX_PIXELS = 178_956_970
"""Pixels of the largest image, half a gigabyte of colours. pillow refuses a larger image as a decompression bomb."""
INSTALL = "pip install 'tightbeam[image]'"


def resized(image: Image, size: tuple[int, int], resample: int) -> Image:
    """Resize to height and width by the filter that pillow numbers ``resample``.

    Raises InputError for a size without pixels, or with more than ``MAX_PIXELS``.
    """
    try:
        from PIL import Image as pillow
    except ImportError:
        raise InputError(f"reading images needs the package pillow, which is not installed; {INSTALL}") from None
    height, width = size
    if not (height >= 1 and width >= 1 and height * width <= MAX_PIXELS):
        rows, columns = image.shape[:2]
        raise InputError(
            f"an image of {columns} x {rows} pixels cannot be fitted into the model's, it would become "
            f"{width} x {height}; cut the margin, or cut the image into pieces"
        )
    if (height, width) == image.shape[:2]:
        return image
    return np.asarray(pillow.fromarray(image).resize((width, height), resample=pillow.Resampling(resample)))


def shortest_edge(image: Image, length: int) -> tuple[int, int]:
    """Return height and width in the image's proportions; the shorter side has ``length`` pixels."""
    height, width = image.shape[:2]
    longer = int(length * max(height, width) / min(height, width))
    return (longer, length) if width <= height else (length, longer)


def thumbnail(image: Image, size: tuple[int, int]) -> tuple[int, int]:
    """Return height and width in the image's proportions, at most its own and at most ``size``."""
    height, width = image.shape[:2]
    rows, columns = min(height, size[0]), min(width, size[1])
    if (rows, columns) == (height, width):
        return height, width
    if height > width:
        columns = int(width * rows / height)
    elif width > height:
        rows = int(height * columns / width)
    return rows, columns


def aligned(image: Image, size: tuple[int, int]) -> Image:
    """Rotate an image by 90 degrees clockwise if it is upright and ``size`` is not, or the reverse."""
    height, width = image.shape[:2]
    rotates = (size[1] < size[0] and width > height) or (size[1] > size[0] and width < height)
    return np.rot90(image, 3) if rotates else image


def padded(image: Image, size: tuple[int, int]) -> Image:
    """Pad with black to ``size``, equally on both sides. Raises InputError for a larger image."""
    missing = [all_of - own for all_of, own in zip(size, image.shape[:2], strict=True)]
    if min(missing) < 0:
        raise InputError(
            f"an image of {image.shape[1]} x {image.shape[0]} pixels is larger than the model's, {size[1]} x "
            f"{size[0]}, and the checkpoint's image processor does not shrink it (do_thumbnail); resize the image"
        )
    return np.pad(image, [*((each // 2, each - each // 2) for each in missing), (0, 0)])


def cropped(image: Image, size: tuple[int, int]) -> Image:
    """Cut ``size`` out of the middle; a smaller image is padded with black."""
    height, width = image.shape[:2]
    rows, columns = max(height, size[0]), max(width, size[1])
    top, left = -(-(rows - height) // 2), -(-(columns - width) // 2)  # rounded up, as transformers does
    whole = np.zeros((rows, columns, image.shape[2]), image.dtype)
    whole[top : top + height, left : left + width] = image
    top, left = top + (height - size[0]) // 2, left + (width - size[1]) // 2
    return whole[top : top + size[0], left : left + size[1]]
