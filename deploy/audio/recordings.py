"""Features of whole recordings of any length, and the number of encoder positions that they give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array, Ints
from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.text.token_ids import as_array, finite_float32

__all__ = ["Extractor", "Recordings"]

Read = Callable[[slice], Array]
"""Returns consecutive samples float32 [n] of a recording."""
Cut = Callable[[int, Read], list[slice]]
"""Cuts a recording of so many samples into parts."""


class Extractor(Protocol):
    """A feature extractor of whole recordings."""

    @property
    def sampling_rate_hz(self) -> int: ...
    @property
    def input(self) -> str:
        """The encoder's input."""
        ...

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Numbers of each sample or frame."""
        ...

    @property
    def ignores_padding(self) -> bool:
        """True if frames of padding, which are zeros, do not change how the encoder encodes a recording."""
        ...

    @property
    def clip(self) -> int | None:
        """The most samples that transformers' extractor leaves whole; None without a limit."""
        ...

    @property
    def cut(self) -> Cut | None:
        """Cuts a recording of more than ``clip`` samples, as transformers' extractor does; None without a limit."""
        ...

    def samples_of(self, length: int) -> int:
        """Return the fewest samples that give features of this length."""
        ...

    def features(self, samples: Array) -> npt.NDArray[np.float32]:
        """Compute the features [X, ...] of a recording [n]. Raises InputError if it has no features."""
        ...

    def mask(self, attention_mask: Ints, positions: int, manifest: Manifest) -> Ints:
        """Convert a mask [B, X] over samples or frames to the mask int64 [B, N] over positions."""
        ...


class Recordings:
    """Computes features of whole recordings, and the number of encoder positions that they give.

    Parameters
    ----------
    extractor : Extractor
        The feature extractor.
    manifest : Manifest
        The bundle's manifest, for the convolutions and the longest source.

    Attributes
    ----------
    sampling_rate_hz : int
        Samples a second.
    shortest, longest : int
        Samples of the shortest recording with a position, and of the longest recording that runs whole.
    """

    def __init__(self, extractor: Extractor, manifest: Manifest) -> None:
        self._extractor, self._manifest = extractor, manifest
        self.sampling_rate_hz = extractor.sampling_rate_hz
        least, most = manifest.shortest_source(1), manifest.longest_source(manifest.sizes.max_source)
        self.shortest, positions = extractor.samples_of(least), extractor.samples_of(most + 1) - 1
        self.longest = positions if extractor.clip is None else min(positions, extractor.clip)

    def features(self, samples: Array) -> npt.NDArray[np.float32]:
        """Compute the features of one recording.

        Parameters
        ----------
        samples : float32 [n]
            Samples in -1..1 at ``sampling_rate_hz``.

        Returns
        -------
        float32 [X, ...]
            Samples or frames, as the encoder takes them.

        Raises
        ------
        InputError
            The recording is silent, and its features would be normalised.
        """
        return self._extractor.features(samples)

    def parts(self, count: int, read: Read) -> list[slice]:
        """Cut a recording of ``count`` samples that is too long.

        The parts that transformers' extractor cuts, if it cuts recordings; otherwise parts of nearly equal length.

        Parameters
        ----------
        count : int
            Samples of the recording.
        read : function
            Returns consecutive samples float32 [n] of it.

        Raises
        ------
        InputError
            The recording is too short.
        """
        if count < self.shortest:
            raise InputError(
                f"the recording has {count} samples, expected at least {self.shortest}, "
                f"{1000 * self.shortest / self.sampling_rate_hz:.0f} ms"
            )
        if count > self.longest == self._extractor.clip and self._extractor.cut is not None:
            return self._extractor.cut(count, read)
        number = -(-count // self.longest)
        length, longer = divmod(count, number)  # as numpy.array_split
        starts = [index * length + min(index, longer) for index in range(number + 1)]
        return [slice(*pair) for pair in pairwise(starts)]

    def positions(self, features: Array) -> int:
        """Return the number of encoder positions that one recording's features give."""
        return self._manifest.source_positions(len(features))

    def checked(self, features: Any, attention_mask: Any) -> tuple[Sequence[Array], Sequence[Ints]]:
        """Check a batch of features as ``model.generate`` takes it.

        Parameters
        ----------
        features : float32 [B, X, ...]
            Samples or frames, padded on the right.
        attention_mask : integers [B, X], optional
            1 at samples or frames, 0 at padding.

        Returns
        -------
        features : B arrays float32 [X, ...]
            Without frames of padding, if these change nothing.
        masks : B arrays int64 [N]
            The masks over the encoder's positions.

        Raises
        ------
        InputError
            A shape, type or value is wrong.
        """
        name, shape = self._extractor.input, self._extractor.row_shape
        batch = as_array(name, features)
        expected = ", ".join(map(str, ("B", "X", *shape)))
        if batch.ndim != 2 + len(shape) or batch.shape[2:] != shape or not batch.size:
            raise InputError(f"{name} is {list(batch.shape)}, expected [{expected}]; make it with Runner.recordings")
        batch = finite_float32(name, batch)
        N, most = self._manifest.source_positions(batch.shape[1]), self._manifest.sizes.max_source
        if not 1 <= N <= most:
            fewest, longest = self._manifest.shortest_source(1), self._manifest.longest_source(most)
            raise InputError(f"{name} is {list(batch.shape)}, expected X from {fewest} to {longest}")
        mask = np.ones(batch.shape[:2], np.int64)
        if attention_mask is not None:
            given = as_array("attention_mask", attention_mask)
            if given.shape != mask.shape or not np.isin(given, (0, 1)).all() or (np.diff(given.astype(int)) > 0).any():
                raise InputError(
                    f"attention_mask is {list(given.shape)}, or does not begin with ones and end with zeros; expected "
                    f"{list(mask.shape)} of them"
                )
            mask = given.astype(np.int64)
        by_position = self._extractor.mask(mask, N, self._manifest)
        if not by_position.any(axis=1).all():
            raise InputError("attention_mask leaves a row without a position; expected at least one")
        if not self._extractor.ignores_padding:
            return list(batch), list(by_position)
        if batch[mask == 0].any():
            raise InputError(f"{name} is not 0 at padding; expected zeros where attention_mask is 0")
        counts = zip(mask.sum(axis=1), by_position.sum(axis=1), strict=True)
        rows = [
            (own[:frames], counted[:positions])
            for own, counted, (frames, positions) in zip(batch, by_position, counts, strict=True)
        ]
        return [own for own, _ in rows], [counted for _, counted in rows]
