"""Image to text: image files or arrays of colours in, text out. An image is one sample, each page of a TIFF another."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.image.files import ImageFile
from tightbeam.deploy.image.patches import PatchProcessor
from tightbeam.deploy.image.processors import AnyProcessor
from tightbeam.deploy.loaded_model import LoadedModel
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.search import SearchResult
from tightbeam.deploy.text.file_lines import FileLine
from tightbeam.deploy.text.input_result import InputResult
from tightbeam.deploy.text.output import Output, join
from tightbeam.deploy.text.run_inputs import OpenInput
from tightbeam.deploy.text.source_reader import SourceReader, run_sources
from tightbeam.deploy.text.token_ids import as_array, finite_float32

__all__ = [
    "ImageModel",
    "ImageReader",
    "Source",
    "check_colours",
    "check_pixels",
    "image_processor_of",
    "read_all",
    "run_images",
]

IMAGES_AHEAD = 4
"""Images, or pages of one, that are read and wait, as pixels of the model's size."""
Source = str | bytes | Array | InputError
"""The name of an image file, the content of one, colours uint8 [rows, columns, 3], or an error in the place of one."""


class ImageModel(LoadedModel, Protocol):
    """A `LoadedModel` with its image processor, None for a model of text or speech."""

    image_processor: AnyProcessor | None

    def sample_of_pixels(self, number: int, pixels: Array, settings: Mapping[str, Any]) -> Sample: ...


def image_processor_of(model: ImageModel) -> AnyProcessor:
    """The image processor. Raises InputError for a model of text or speech."""
    if model.image_processor is None:
        kind, input_ = ("a speech", "audio") if model.is_speech else ("a text", "text or token ids")
        raise InputError(f"this is {kind} model; pass {input_} instead of images")
    return model.image_processor


def check_colours(image: Any) -> npt.NDArray[np.uint8]:
    """The same as an array. Raises InputError unless it is uint8 [rows, columns, 3] with at least one pixel."""
    colours = as_array("image", image)
    if colours.ndim != 3 or colours.shape[2] != 3 or colours.dtype != np.uint8 or not colours.size:
        raise InputError(
            f"an image is {colours.dtype} {list(colours.shape)}, expected uint8 [rows, columns, 3], red, green and blue"
        )
    return colours


def check_pixels(processor: AnyProcessor, pixel_values: Any, positions: int) -> tuple[Array, Ints]:
    """Pixels [B, 3, height, width] or patches [B, N, width] as float32, and their mask int64 [B, N].

    ``positions`` is N of pixels. Raises InputError for another shape, and for NaN or infinity.
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


@dataclass(eq=False)
class _Pages(OpenInput):
    """An input of several pages, of which a few wait or run at a time.

    Attributes
    ----------
    count : int
        All pages.
    read : function
        Makes the sample of a page, by its number from 0.
    """

    count: int = 0
    read: Callable[[int], Sample] | None = None

    def start(self) -> None:
        """Make the samples of the first pages. Raises InputError."""
        assert self.read is not None
        self.samples += [self.read(page) for page in range(min(IMAGES_AHEAD, self.count))]

    @property
    def done(self) -> bool:
        return self.failure is not None or len(self.found) == self.count

    @property
    def is_one_sample(self) -> bool:
        return False

    def take(self, number: int, result: SearchResult) -> list[Sample]:
        super().take(number, result)
        place = next(place for place, sample in enumerate(self.samples) if sample.number == number)
        done = self.samples[place]
        self.samples[place] = replace(done, source=done.source[:0])  # its pixels are not needed any more
        if self.failure is not None or len(self.samples) == self.count or self.read is None:
            return []
        try:
            self.samples.append(self.read(len(self.samples)))
        except InputError as error:
            self.failure = error
            return []
        return self.samples[-1:]

    def output(self, model: LoadedModel) -> Output:
        pages = self.outputs(model)
        return replace(join(pages), pages=pages)

    def close(self) -> None:
        self.read = None


class ImageReader(SourceReader):
    """The reader of a model that reads images.

    Parameters
    ----------
    model
        The runner of such a model.
    settings
        Settings of ``model.generate``.
    numbers
        Numbers of the samples.
    most_pages
        Pages of an image, at most.

    Raises
    ------
    GenerationError
        A setting is wrong.
    """

    def __init__(
        self,
        model: ImageModel,
        settings: Mapping[str, Any],
        *,
        numbers: Iterator[int] | None = None,
        most_pages: float = math.inf,
    ) -> None:
        self._processor = image_processor_of(model)
        super().__init__(model.options(**settings).without_source_tokens("an image"), numbers)
        self._model, self._settings, self._most_pages = model, settings, most_pages

    def open(self, result: InputResult, source: str | bytes | Array) -> OpenInput:
        if not isinstance(source, str | bytes):
            return OpenInput(result, [self._sample(check_colours(source))])
        file = ImageFile(source)
        if len(file) == 1:
            return OpenInput(result, [self._sample(file.read(0))])
        self._check_pages(len(file), result.source or "the image")
        made = _Pages(result, [], count=len(file), read=lambda page: self._sample(file.read(page)))
        made.start()
        return made

    def _sample(self, colours: npt.NDArray[np.uint8]) -> Sample:
        return self._model.sample_of_pixels(next(self.numbers), self._processor.pixels(colours), self._settings)

    def _check_pages(self, pages: int, shown: str) -> None:
        returned = self.options.num_return_sequences
        if pages > self._most_pages:
            raise InputError(f"{shown} has {pages} pages, expected {self._most_pages} at most; cut it into pieces")
        if returned > 1:
            raise InputError(
                f"num_return_sequences={returned} is for images of one page, {shown} has {pages}; leave it out, or "
                "save each page as a file"
            )


def run_images(
    model: ImageModel,
    sources: Iterable[Source | FileLine],
    *,
    batch_size: int = 8,
    typed: bool = False,
    **settings: Any,
) -> Iterator[OpenInput]:
    """Generate for images. Several run together, while the next ones are read.

    Parameters
    ----------
    model
        The runner of a model that reads images.
    sources
        The images, or names of files with their own settings.
    batch_size
        Images in the running batch, at most.
    typed
        Names may come slowly, so that images that are there do not wait for others.
    **settings
        Settings of ``model.generate``.

    Yields
    ------
    OpenInput
        One for each image, in order; one that cannot be read has a ``failure``.

    Raises
    ------
    GenerationError
        A setting is wrong; raised before any image is read.
    """
    most_open, make = batch_size + IMAGES_AHEAD, partial(ImageReader, model)
    return run_sources(
        model, make, sources, settings, batch_size=batch_size, typed=typed, ahead=IMAGES_AHEAD, most_open=most_open
    )


def read_all(model: ImageModel, images: Any, *, batch_size: int = 8, **settings: Any) -> list[Output]:
    """Generate for images, as `Runner.read_images` documents."""
    if isinstance(images, str | bytes) or not hasattr(images, "__iter__"):
        raise InputError(f"images is {type(images).__name__}, expected a list of images; pass [image]")
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise InputError(f"batch_size={batch_size!r} is not a number of images; pass 1 or more")
    image_processor_of(model)
    sources = [os.fspath(each) if isinstance(each, os.PathLike) else each for each in images]
    found = []
    for index, done in enumerate(run_images(model, sources, batch_size=batch_size, **settings)):
        if isinstance(done.failure, InputError):
            raise InputError(f"image {index}: {done.failure}")
        if done.failure is not None:
            raise done.failure
        own = done.result
        found.append(
            Output(
                own.sequences,
                own.scores,
                own.texts,
                own.new_tokens,
                own.token_scores,
                own.alternatives,
                pages=own.pages,
            )
        )
    return found
