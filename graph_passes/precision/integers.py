"""Matrices as integers of 8 bits with a scale for each column, or of 4 bits, made once for all their readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.int4 import Int4Matrix
from tightbeam.graph_passes.precision.sites import Site
from tightbeam.plugins.ops.quantized_matmul.layout import tiled

__all__ = ["MOST", "SMALLEST", "QuantizedWeights", "quantized_columns"]

MOST = 127
"""The largest integer of a row or a column."""
SMALLEST = 1e-30
"""A row or column without a larger number counts as zeros: ``QuantizeRows`` takes no smaller scale."""


def quantized_columns(matrix: Array) -> tuple[Array, Array]:
    """Quantise a matrix with a scale for each column.

    Parameters
    ----------
    matrix
        Finite numbers [X, Y].

    Returns
    -------
    tuple
        Integers int8 [X, Y], and the scale float32 [1, Y]. A number is its integer times the scale of its column, to
        half a step.
    """
    largest = np.abs(matrix).max(axis=0, keepdims=True)
    scale = np.where(largest > SMALLEST, largest, 1).astype(np.float32) / np.float32(MOST)
    return np.clip(np.rint(matrix / scale), -MOST, MOST).astype(np.int8), scale


@dataclass
class QuantizedWeights:
    """Quantised matrices, each made once for all its readers in both graphs.

    ``int4`` has the matrices of the products and embeddings of the form "w4a16", by the names of their sites.
    """

    int4: Mapping[str, Int4Matrix] = field(default_factory=dict)
    made: dict[tuple[int, bool], tuple[Array, tuple[Array, ...]]] = field(default_factory=dict)
    saved: int = 0

    def of(self, site: Site) -> tuple[Array, ...]:
        """Tiles, and scale [1, Y], of a site's matrix [X, Y]; with heads, tiles and scale of each.

        Of 4 bits: tiles, scales of blocks, and scale [Y].
        """
        values: Array = site.matrix.values
        key = id(values), site.transposed
        if key not in self.made and site.name in self.int4:
            self._keep(key, values, self.int4[site.name].tiles())
        elif key not in self.made:
            matrices = site.values if site.heads else site.values[None]
            quantized = [quantized_columns(matrix) for matrix in matrices]
            tiles = np.stack([tiled(integers) for integers, _ in quantized])
            scale = np.stack([scales for _, scales in quantized])
            if not site.heads:
                tiles, scale = tiles[0], scale[0]
            self._keep(key, values, (tiles, scale))
        return self.made[key][1]

    def table_of(self, site: Site) -> tuple[Array, Array, Array]:
        """Integers uint8 [Y, X] of a table, the scale [Y] of its rows, and the integer uint8 [Y] that is zero."""
        integers, scale = quantized_columns(site.values)
        unsigned = np.ascontiguousarray((integers.T.astype(np.int16) + MOST).astype(np.uint8))
        made = unsigned, scale.reshape(-1), np.full(site.Y, MOST, np.uint8)
        self.saved += site.values.nbytes - sum(array.nbytes for array in made)
        return made

    def _keep(self, key: tuple[int, bool], values: Array, made: tuple[Array, ...]) -> None:
        self.made[key] = values, made
        self.saved += values.nbytes - sum(array.nbytes for array in made)

    def bytes_saved(self, run: object) -> int:
        """Bytes saved against float32, the same in any run."""
        return self.saved
