"""Image to text: image files or arrays of colours in, text out. An image is one sample."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.image.files import read_image
from tightbeam.deploy.image.processor import ImageProcessor
from tightbeam.deploy.loaded_model import LoadedModel
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.text.input_result import InputResult
from tightbeam.deploy.text.output import Output
from tightbeam.deploy.text.run_inputs import OpenInput, run_inputs
from tightbeam.deploy.text.token_ids import as_array

__all__ = [
    "ImageModel",
    "Source",
    "check_colours",
    "check_image_options",
    "check_pixels",
    "image_processor_of",
    "pixels_of",
    "read_all",
    "run_images",
]

IMAGES_AHEAD = 4
"""Images that are read and wait, as pixels of the model's size."""
Source = str | bytes | Array | InputError
"""The name of an image file, the content of one, colours uint8 [rows, columns, 3], or an error in the place of one."""


class ImageModel(LoadedModel, Protocol):
    """A `LoadedModel` with its image processor, None for a model of text or speech."""

    image_processor: ImageProcessor | None

    def sample_of_pixels(self, number: int, pixels: Array, settings: Mapping[str, Any]) -> Sample: ...


def image_processor_of(model: ImageModel) -> ImageProcessor:
    """The image processor. Raises InputError for a model of text or speech."""
    if model.image_processor is None:
        kind, input_ = ("a speech", "audio") if model.is_speech else ("a text", "text or token ids")
        raise InputError(f"this is {kind} model; pass {input_} instead of images")
    return model.image_processor


def pixels_of(model: ImageModel, source: str | bytes | Array) -> Array:
    """Read an image as pixels float32 [3, height, width]. Raises InputError where it cannot be read."""
    processor = image_processor_of(model)
    colours = read_image(source) if isinstance(source, str | bytes) else check_colours(source)
    return processor.pixels(colours)


def check_colours(image: Any) -> npt.NDArray[np.uint8]:
    """The same as an array. Raises InputError unless it is uint8 [rows, columns, 3] with at least one pixel."""
    colours = as_array("image", image)
    if colours.ndim != 3 or colours.shape[2] != 3 or colours.dtype != np.uint8 or not colours.size:
        raise InputError(
            f"an image is {colours.dtype} {list(colours.shape)}, expected uint8 [rows, columns, 3], red, green and blue"
        )
    return colours


def check_pixels(processor: ImageProcessor, pixel_values: Any) -> Array:
    """Pixels [B, 3, height, width] as float32. Raises InputError for another shape, and for NaN or infinity."""
    pixels = as_array("pixel_values", pixel_values)
    shape = (3, processor.height, processor.width)
    if pixels.ndim != 4 or pixels.shape[1:] != shape or not len(pixels):
        raise InputError(
            f"pixel_values is {list(pixels.shape)}, expected [B, {', '.join(map(str, shape))}]; make them with "
            "Runner.image_processor.pixels"
        )
    if not (np.issubdtype(pixels.dtype, np.floating) and np.isfinite(pixels).all()):
        raise InputError(f"pixel_values is {pixels.dtype}, or holds NaN or infinity; expected finite float32")
    return np.ascontiguousarray(pixels, dtype=np.float32)


def check_image_options(options: GenerationOptions) -> GenerationOptions:
    """The same options. Raises GenerationError for a setting that reads the source's tokens."""
    return options.without_source_tokens("an image")


def run_images(
    model: ImageModel, sources: Iterable[Source], *, batch_size: int = 8, typed: bool = False, **settings: Any
) -> Iterator[OpenInput]:
    """Generate for images. Several run together, while the next ones are read.

    Parameters
    ----------
    model
        The runner of a model that reads images.
    sources
        The images.
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
    options = check_image_options(model.options(**settings))
    numbers = count()

    def read(number: int, source: Source) -> OpenInput:
        try:
            if isinstance(source, InputError):
                raise source
            pixels = pixels_of(model, source)
        except InputError as error:
            return OpenInput(InputResult(number, options.num_return_sequences), [], error)
        sample = model.sample_of_pixels(next(numbers), pixels, settings)
        return OpenInput(InputResult(number, options.num_return_sequences), [sample])

    inputs = (read(number, source) for number, source in enumerate(sources, start=1))
    yield from run_inputs(model, inputs, max_rows=batch_size * options.num_beams, typed=typed, ahead=IMAGES_AHEAD)


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
        found.append(Output(own.sequences, own.scores, own.texts, own.new_tokens, own.token_scores, own.alternatives))
    return found
