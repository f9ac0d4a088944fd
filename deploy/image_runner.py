"""Models of a loaded bundle that read images: images, and pixels of them, turned into text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.batches import Batches
from tightbeam.deploy.image.read import check_pixels, image_processor_of, read_all
from tightbeam.deploy.scheduling.sample import samples_of_features
from tightbeam.deploy.search import SearchCallback, SearchResult
from tightbeam.deploy.text.output import Output

__all__ = ["ImageRunner"]


class ImageRunner(Batches):
    """The part of `Runner` that takes images.

    Parameters
    ----------
    bundle, runtime, codec
        Those of `ModelSettings`.
    """

    def generate_from_pixels(
        self, pixel_values: Array, *, callback: SearchCallback | None = None, **settings: Any
    ) -> SearchResult:
        """Generate from the pixels of images, like ``model.generate(pixel_values, **settings)``.

        Parameters
        ----------
        pixel_values : float32 [B, 3, height, width] or [B, X, width]
            Pixels of images in the model's size, as `ImageProcessor.pixels` makes them; or patches of each image, as
            `PatchProcessor.pixels` makes them, and zeros behind them.
        callback : SearchCallback, optional
            Receiver of results while the search runs, the ``callback`` of ``generate``.
        **settings
            Arguments of ``model.generate``, by the same names.

        Returns
        -------
        SearchResult
            Sequences from the start token on.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        InputError
            The pixels have a wrong shape, type or value, or this model reads no images.
        BundleError
            The runtime failed.
        """
        settings = self._without_effect(settings)
        options = self.options(**settings).without_source_tokens("an image")
        pixels, mask = check_pixels(image_processor_of(self), pixel_values, self.manifest.sizes.max_source)
        return self._generate(samples_of_features(pixels, mask, options), callback)

    def read_images(self, images: Sequence[Any], *, batch_size: int = 8, **settings: Any) -> list[Output]:
        """Generate text from images.

        Parameters
        ----------
        images : sequence of str, path, bytes or uint8 [rows, columns, 3]
            Names of PNG, JPEG, TIFF, WebP or BMP files, the content of one, or arrays of red, green and blue.
        batch_size : int
            Images that run together, at most.
        **settings
            Arguments of ``model.generate``, by the same names.

        Returns
        -------
        list of Output
            One for each image: texts, token ids and scores of its sequences, best first; no texts where the bundle has
            no tokenizer. Of a TIFF of several pages, the best sequences joined, and ``pages`` with one for each.

        Raises
        ------
        GenerationError
            A setting is unknown, not supported, or impossible for this model.
        InputError
            An image cannot be read; the message names its file or its place.
        BundleError
            The runtime failed.
        """
        return read_all(self, images, batch_size=batch_size, **self._without_effect(settings))
