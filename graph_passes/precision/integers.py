"""Matrices as integers of 8 bits with a scale for each column, or of 4 bits, made once for all their readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.int4 import Int4Matrix
from tightbeam.graph_passes.precision.sites import Site
from tightbeam.plugins.ops.quantized_matmul.layout import COLUMNS_AT_ONCE, tiled

__all__ = ["MOST", "SMALLEST", "Made", "QuantizedWeights", "quantized_columns"]

MOST = 127
"""The largest integer of a row or a column."""
SMALLEST = 1e-30
"""A row or column without a larger number counts as zeros: ``QuantizeRows`` takes no smaller scale."""

Made = dict[tuple[int, bool, bool], tuple[Array, tuple[Array, ...]]]
"""Matrices and what was made of each: by the matrix's identity, whether it is transposed, and whether it has 4 bits."""


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
    integers, scale = np.empty_like(matrix, np.int8), np.empty((1, matrix.shape[1]), np.float32)
    for first in range(0, matrix.shape[1], COLUMNS_AT_ONCE):
        columns = slice(first, first + COLUMNS_AT_ONCE)
        largest = np.abs(matrix[:, columns]).max(axis=0, keepdims=True)
        scale[:, columns] = np.where(largest > SMALLEST, largest, 1).astype(np.float32) / np.float32(MOST)
        steps = matrix[:, columns] / scale[:, columns]
        integers[:, columns] = np.clip(np.rint(steps, out=steps), -MOST, MOST, out=steps)
    return integers, scale


@dataclass
class QuantizedWeights:
    """Quantised matrices, each made once for all its readers in both graphs.

    ``int4`` has the matrices of the products and embeddings of the form "w4a16", by the names of their sites. ``made``
    may come from an earlier copy of the same graphs.
    """

    int4: Mapping[str, Int4Matrix] = field(default_factory=dict)
    made: Made = field(default_factory=dict)
    saved: int = 0
    counted: set[tuple[int, bool, bool]] = field(default_factory=set)

    def of(self, site: Site) -> tuple[Array, ...]:
        """Tiles, and scale [1, Y], of a site's matrix [X, Y]; with heads, tiles and scale of each.

        Of 4 bits: tiles, scales of blocks, and scale [Y].
        """
        values: Array = site.matrix.values
        key = id(values), site.transposed, site.name in self.int4
        if key not in self.made:
            in_int4 = self.int4.get(site.name)
            self.made[key] = values, _in_int8(site) if in_int4 is None else in_int4.tiles()
        made = self.made[key][1]
        if key not in self.counted:
            self.counted.add(key)
            self.saved += values.nbytes - sum(array.nbytes for array in made)
        return made

    def table_of(self, site: Site) -> tuple[Array, Array, Array]:
        """Integers uint8 [Y, X] of a table, the scale [Y] of its rows, and the integer uint8 [Y] that is zero."""
        integers, scale = quantized_columns(site.values)
        unsigned = np.ascontiguousarray((integers.T.astype(np.int16) + MOST).astype(np.uint8))
        made = unsigned, scale.reshape(-1), np.full(site.Y, MOST, np.uint8)
        self.saved += site.values.nbytes - sum(array.nbytes for array in made)
        return made

    def bytes_saved(self, run: object) -> int:
        """Bytes saved against float32, the same in any run."""
        return self.saved


def _in_int8(site: Site) -> tuple[Array, Array]:
    """Tiles and scale of a site's matrix; with heads, of each head's."""
    matrices = site.values if site.heads else site.values[None]
    quantized = [quantized_columns(matrix) for matrix in matrices]
    tiles = np.stack([tiled(integers) for integers, _ in quantized])
    scale = np.stack([scales for _, scales in quantized])
    return (tiles, scale) if site.heads else (tiles[0], scale[0])
