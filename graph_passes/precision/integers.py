"""Matrices as integers of 8 bits with a scale for each column, or of 4 bits, made once for all their readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.int4 import Int4Matrix
from tightbeam.graph_passes.precision.sites import Site
from tightbeam.plugins.ops.quantized_matmul.layout import COLUMNS_AT_ONCE, tiled

__all__ = [
    "IN_BLOCKS",
    "IN_INT4",
    "IN_INT8",
    "MOST",
    "SMALLEST",
    "Int8Matrix",
    "Made",
    "QuantizedWeights",
    "ggml_matrices",
    "made_of",
    "quantized_columns",
]

MOST = 127
"""The largest integer of a row or a column."""
SMALLEST = 1e-30
"""A row or column without a larger number counts as zeros: ``QuantizeRows`` takes no smaller scale."""

IN_INT4, IN_INT8, IN_BLOCKS, IN_GGML = "4 bits", "8 bits", "8 bits in blocks", "ggml"
STORED = {"w4a16": IN_INT4, "int8": IN_INT8, "w8a16": IN_INT8, "blocks": IN_BLOCKS, "ggml": IN_GGML}
"""The storage of a matrix in each form."""
GGML_BLOCK = 32

Made = dict[tuple[int, bool, str], tuple[Array, tuple[Array, ...]]]
"""Matrices and what was made of each: by the matrix's identity, whether it is transposed, and how it is stored (a value
of ``STORED``)."""


@dataclass(frozen=True)
class Int8Matrix:
    """A matrix [X, Y] of integers int8 [X, Y], with a scale float32 [blocks, Y] for each block of a column."""

    integers: Array
    scale: Array

    @property
    def values(self) -> Array:
        """The numbers that the integers stand for, float32 [X, Y]."""
        return np.asarray(self.integers * np.repeat(self.scale, len(self.integers) // len(self.scale), axis=0))

    def columns(self, step: int) -> Int8Matrix:
        """Every ``step``-th column."""
        return Int8Matrix(self.integers[:, ::step], self.scale[:, ::step])

    def tiles(self) -> tuple[Array, Array]:
        """Weights and scales, as QuantizedMatMul reads them."""
        return tiled(self.integers), self.scale


def made_of(sites: Sequence[Site], rounded: Mapping[str, Int8Matrix], stored: str) -> Made:
    """Tiles and scales for ``quantize`` of matrices that are rounded already, by the names of their sites."""
    found: Made = {}
    for site in sites:
        key = id(site.matrix.values), site.transposed, stored
        if site.name in rounded and key not in found:
            found[key] = site.matrix.values, rounded[site.name].tiles()
    return found


def ggml_matrices(sites: Sequence[Site], *, in_4_bits: bool) -> dict[str, Int8Matrix]:
    """Matrices of products and embeddings as llama.cpp stores them in Q8_0, or in Q4_0, by the names of their sites.

    32 numbers of a column have one scale, in float16 (``block_q8_0`` and ``block_q4_0`` of ggml). A file in Q4_0 has
    its embeddings in more bits, here in Q8_0. Matrices of heads, tables, and those whose columns are not a multiple of
    32 numbers are missing.
    """
    embeddings = {id(site.matrix.values) for site in sites if site.rows is None}
    found: dict[str, Int8Matrix] = {}
    made: dict[tuple[int, bool], Int8Matrix] = {}
    for site in sites:
        if site.heads or site.place is not None or site.X % GGML_BLOCK:
            continue
        key = id(site.matrix.values), site.transposed
        if key not in made:
            rounded = _q4_0_block if in_4_bits and key[0] not in embeddings else quantized_columns
            blocks = [rounded(site.values[first : first + GGML_BLOCK]) for first in range(0, site.X, GGML_BLOCK)]
            scale = np.concatenate([scale for _, scale in blocks])
            with np.errstate(over="ignore"):
                scale = scale.astype(np.float16).astype(np.float32)
            made[key] = Int8Matrix(np.concatenate([integers for integers, _ in blocks]), scale)
        found[site.name] = made[key]
    return found


def _q4_0_block(block: Array) -> tuple[Array, Array]:
    """Integers [32, Y] and scales [1, Y] of Q4_0: the largest number of a block becomes -8 steps or 8."""
    largest = np.take_along_axis(block, np.abs(block).argmax(axis=0, keepdims=True), axis=0)
    scale = np.where(np.abs(largest) > SMALLEST, largest, 1) / np.float32(-8)
    integers = np.floor(block / scale + 8.5).clip(0, 15) - 8
    return (integers * np.sign(scale)).astype(np.int8), np.abs(scale).astype(np.float32)


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

    ``forms`` has the forms of products and embeddings by the names of their sites, "int8" for all others, and ``int4``
    the matrices of the form "w4a16". ``made`` may come from an earlier copy of the same graphs.
    """

    forms: Mapping[str, str] = field(default_factory=dict)
    int4: Mapping[str, Int4Matrix] = field(default_factory=dict)
    made: Made = field(default_factory=dict)
    saved: int = 0
    counted: set[tuple[int, bool, str]] = field(default_factory=set)

    def of(self, site: Site) -> tuple[Array, ...]:
        """Tiles, and scale [blocks, Y], of a site's matrix [X, Y]; with heads, tiles and scale of each.

        Of 4 bits: tiles, scales of blocks, and scale [Y].
        """
        values: Array = site.matrix.values
        stored = STORED[self.forms.get(site.name, "int8")]
        key = id(values), site.transposed, stored
        if key not in self.made:
            self.made[key] = values, self.int4[site.name].tiles() if stored == IN_INT4 else _in_int8(site)
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
