"""Give float32 products to an operator that reads its matrix in the mapped weights file.

    x - MatMul(W) - Add b - Add r      ->  x - Linear(W in tiles, b, r)
    tokens - Gather(E); x - Gemm(E^T)  ->  tokens - TiledGather(E^T in tiles); x - Linear(E^T in tiles)

ONNX Runtime packs the matrix of a MatMul again in each session; the tiles of ``Linear`` are packed in the file. Exact
but for rounding. An embedding of tokens that no product reads stays as it is. Needs: float32 graphs, after ``quantize``
in int8. Operators: ``plugins/ops/linear`` and ``plugins/ops/tiled_gather``, which have CPU kernels alone;
``standard_operators`` is the inverse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import tidy
from tightbeam.graph_passes.model import Array, ModelGraphs, PassResult
from tightbeam.graph_passes.precision.products import Products
from tightbeam.graph_passes.precision.sites import Site, named_graphs, sites_of
from tightbeam.plugins.ops.linear.layout import tiled

__all__ = ["linear"]

NAME = "linear"


def linear(graphs: ModelGraphs) -> PassResult:
    """Replace products with a constant matrix, and embeddings that one of them reads, in both graphs, in place."""
    found: list[tuple[str, gs.Graph, list[Site]]] = []
    for name, graph in named_graphs(graphs):
        tidy(graph)
        found.append((name, graph, [site for site in sites_of(graph, name, graphs.sizes, group=1) if not site.heads]))
    matrices = _Matrices()
    for _, _, sites in found:
        for site in sites:
            if site.rows is not None:
                matrices.add(site)
    return PassResult(NAME, sum(_replace(graph, name, sites, matrices) for name, graph, sites in found))


def _replace(graph: gs.Graph, name: str, sites: list[Site], matrices: _Matrices) -> int:
    chosen = [(site, matrix) for site in sites if (matrix := matrices.find(site)) is not None]
    products = Products(graph, NAME, name)
    constants: dict[int, gs.Constant] = {}
    for site, matrix in chosen:
        if id(matrix) not in constants:
            constants[id(matrix)] = gs.Constant(f"{site.matrix.name}.tiles", matrix.tiles())
        tiles = constants[id(matrix)]
        if site.rows is None:
            products.embedding(site, "TiledGather", [tiles])
        else:
            products.product(site, "Linear", [products.matrix_of(site, site.X), tiles], activates=False)
    tidy(graph)
    return len(chosen)


@dataclass
class _Matrix:
    """A matrix of one or more sites, equal number by number."""

    site: Site
    made: Array | None = None

    def is_of(self, site: Site) -> bool:
        own, other = self.site.matrix.values, site.matrix.values
        if own is other:
            return True
        return bool(np.array_equal(own[0], other[0]) and np.array_equal(own, other))

    def tiles(self) -> Array:
        if self.made is None:
            self.made = tiled(self.site.values)
        return self.made


class _Matrices:
    """The matrices of products of both graphs, each once."""

    def __init__(self) -> None:
        self.by_shape: dict[tuple[object, bool], list[_Matrix]] = {}

    def add(self, site: Site) -> None:
        if self.find(site) is None:
            self.by_shape.setdefault((site.shape, site.transposed), []).append(_Matrix(site))

    def find(self, site: Site) -> _Matrix | None:
        of_shape = self.by_shape.get((site.shape, site.transposed), [])
        return next((matrix for matrix in of_shape if matrix.is_of(site)), None)
