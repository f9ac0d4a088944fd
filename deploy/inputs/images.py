"""Images as inputs: files, contents of files, or arrays of colours. Each image, or page of a TIFF, is one sample."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.image.geometry import MAX_PIXELS
from tightbeam.deploy.inputs.file_lines import FileLine
from tightbeam.deploy.inputs.files.image import ImageFile
from tightbeam.deploy.inputs.open_input import OpenInput, PartedInput
from tightbeam.deploy.inputs.output import Output
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.inputs.run import finished
from tightbeam.deploy.inputs.sources import SourceReader, check_list, run_sources
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.text.token_ids import as_array

__all__ = ["ImageReader", "Source", "check_colours", "read_images", "run_images"]

IMAGES_AHEAD = 4
"""Images, or pages of one image, that are read ahead and wait as pixels of the model's size."""
Source = str | bytes | Array | InputError
"""The name of an image file, its content, colours uint8 [rows, columns, 3], or an error in place of these."""


def check_colours(image: Any) -> npt.NDArray[np.uint8]:
    """Return an image as an array. Raises InputError unless it is uint8 [rows, columns, 3] with at least one pixel."""
    colours = as_array("image", image)
    if colours.ndim != 3 or colours.shape[2] != 3 or colours.dtype != np.uint8 or not colours.size:
        raise InputError(
            f"an image is {colours.dtype} {list(colours.shape)}, expected uint8 [rows, columns, 3], red, green and blue"
        )
    return colours


class ImageReader(SourceReader):
    """The reader of a model that reads images.

    Parameters
    ----------
    model
        A model that reads images.
    settings
        Settings of ``model.generate``.
    numbers
        Numbers of the samples.
    most_pages
        The most pages of an image.
    most_pixels
        The most pixels of a page.
    together
        The most pages of one image that are decoded when it is opened; the others follow one by one.

    Raises
    ------
    GenerationError
        A setting is wrong.
    """

    def __init__(
        self,
        model: Model,
        settings: Mapping[str, Any],
        *,
        numbers: Iterator[int] | None = None,
        most_pages: float = math.inf,
        most_pixels: int = MAX_PIXELS,
        together: int = IMAGES_AHEAD,
    ) -> None:
        self._together = together
        self._processor, self._most_pages, self._most_pixels = model.require_images(), most_pages, most_pixels
        super().__init__(model, settings, numbers, without_tokens="an image")

    def open(self, result: InputResult, source: str | bytes | Array) -> OpenInput:
        if not isinstance(source, str | bytes):
            return OpenInput(result, [self._sample(check_colours(source))])
        file = ImageFile(source, most_pages=self._most_pages, most_pixels=self._most_pixels)
        self._check_pages(len(file), result.source or "the image")
        pages = (self._sample(file.read(page)) for page in range(len(file)))
        opened = PartedInput(result, [], count=len(file), parts=pages, paged=len(file) > 1)
        return opened.begin(self._together)

    def _sample(self, colours: npt.NDArray[np.uint8]) -> Sample:
        return self.model.sample_of_pixels(next(self.numbers), self._processor.pixels(colours), self.settings)

    def _check_pages(self, pages: int, shown: str) -> None:
        returned = self.options.num_return_sequences
        if returned > 1 and pages > 1:
            raise InputError(
                f"num_return_sequences={returned} is for images of one page, {shown} has {pages}; leave it out, or "
                "save each page as a file"
            )


def run_images(
    model: Model,
    sources: Iterable[Source | FileLine],
    *,
    batch_size: int,
    settings: Mapping[str, Any],
    typed: bool = False,
) -> Iterator[OpenInput]:
    """Generate for images. Several run together while the next ones are read.

    Parameters
    ----------
    model
        A model that reads images.
    sources
        The images, or names of files with their own settings.
    batch_size
        The most images in the running batch.
    settings
        Settings of ``model.generate``.
    typed
        Names may come slowly, so images that are there do not wait for others.

    Yields
    ------
    OpenInput
        One for each image, in order. The input of an unreadable image has a ``failure``.

    Raises
    ------
    GenerationError
        A setting is wrong; raised before any image is read.
    """
    how: dict[str, Any] = {"batch_size": batch_size, "typed": typed, "ahead": IMAGES_AHEAD}
    return finished(run_sources(model, ImageReader, sources, settings, most_open=batch_size + IMAGES_AHEAD, **how))


def read_images(model: Model, images: Any, *, batch_size: int, settings: Mapping[str, Any]) -> list[Output]:
    """Generate for images, as `Runner.read_images` documents."""
    check_list("images", images, "images", "image")
    model.require_images()
    sources = [os.fspath(each) if isinstance(each, os.PathLike) else each for each in images]
    found = []
    for index, done in enumerate(run_images(model, sources, batch_size=batch_size, settings=settings)):
        if isinstance(done.failure, InputError):
            raise InputError(f"image {index}: {done.failure}")
        if done.failure is not None:
            raise done.failure
        assert done.made is not None
        found.append(done.made)
    return found
