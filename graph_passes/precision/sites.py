"""The products with constant matrices, the embeddings and the tables of a graph, which int8 can quantise.

MatMul(x [..., X], W [X, Y]) [- Add b]; Gemm(x, W [Y, X], c)    a product
x [R, H, X] - Transpose - MatMul(W [H, X, Y]) - Transpose       the products of H heads
Gather(E [tokens, X], tokens)                                   an embedding
Conv(x, W [Y, ...]); Add(x, P [.., Y, D]); Gather(P, 0 .. N)    a table: kept in 8 bits, computed in float32
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import only_reader
from tightbeam.graph_passes.model import Array, ModelGraphs, Sizes
from tightbeam.plugins.ops.quantized_matmul import GROUP

__all__ = ["BITS", "FORMS", "Site", "named_graphs", "sites", "sites_of", "tables_of"]

FEWEST_POSITIONS = 32
"""Rows from which a table of positions is quantised."""
NARROWEST_TABLE = 32
"""Fewest numbers of a row of a table. With fewer, as in a depthwise convolution, the scales would outweigh them."""
FORMS = ("w4a16", "int8", "w8a16", "blocks", "fp32")
"""Forms of a product or an embedding, the cheapest first: weights of 4 bits and rows of 16; integers of 8 bits; weights
of 8 bits and rows of 16; these with a scale for each block of a column and of a row; as it is."""
BITS = {"w4a16": 4, "int8": 8, "w8a16": 8, "blocks": 8.25, "fp32": 32}
"""Bits of a weight in each form, with the scales of blocks of 128 numbers. All readers of a matrix have forms of the
same bits, so that it is stored once."""


@dataclass(frozen=True)
class Site:
    """A product, the products of heads, or an embedding that can be quantised."""

    name: str
    """graph and node, with a dot between them"""
    node: gs.Node
    matrix: gs.Constant
    transposed: bool
    """the constant is [Y, X], as an embedding's is"""
    rows: gs.Tensor | None
    """the rows that are multiplied, X wide, or [R, H, X]; None for an embedding"""
    bias: gs.Constant | None = None
    addend: gs.Tensor | None = None
    place: int | None = None
    """of a table, which input of the node it is; None for a product or an embedding"""

    @property
    def heads(self) -> int:
        """Heads that have a matrix each; 0 for one matrix."""
        return int(self.matrix.shape[0]) if len(self.matrix.shape) == 3 else 0

    @property
    def X(self) -> int:
        """Numbers of a row of the product, or of an embedding."""
        return int(self.matrix.shape[-1 if self.transposed else -2])

    @property
    def Y(self) -> int:
        """Columns of the product, or tokens of an embedding."""
        return int(self.matrix.shape[-2 if self.transposed else -1])

    @property
    def shape(self) -> tuple[int, int] | tuple[int, int, int]:
        """(X, Y), or (heads, X, Y) if each head has a matrix."""
        return (self.heads, self.X, self.Y) if self.heads else (self.X, self.Y)

    @property
    def values(self) -> Array:
        """The matrix [X, Y], or the matrices [H, X, Y]."""
        values: Array = self.matrix.values
        return values.T if self.transposed else values


def sites(graphs: ModelGraphs) -> list[Site]:
    """The places that ``quantize`` rewrites: products and embeddings of each graph in its order, then its tables."""
    return [
        site
        for name, graph in named_graphs(graphs)
        for site in (*sites_of(graph, name, graphs.sizes), *tables_of(graph, name, graphs.sizes))
    ]


def named_graphs(graphs: ModelGraphs) -> tuple[tuple[str, gs.Graph], ...]:
    """Both graphs, each with the first part of its sites' names."""
    return ("encoder", graphs.encoder), ("decoder", graphs.decoder)


def sites_of(graph: gs.Graph, name: str, sizes: Sizes, group: int = GROUP) -> list[Site]:
    """The sites of one graph, called ``name``, whose rows have a multiple of ``group`` numbers."""
    found = []
    for node in graph.nodes:
        place = f"{name}.{node.name}"
        site = _product(node, place) or _products_of_heads(node, place, graph) or _embedding(node, place, sizes)
        if site is not None and site.X % group == 0:
            found.append(site)
    return found


def tables_of(graph: gs.Graph, name: str, sizes: Sizes) -> list[Site]:
    """The tables of one graph, called ``name``: kernels of convolutions, and positions that are added whole."""
    found = (_table(node, f"{name}.{node.name}", sizes) for node in graph.nodes)
    return [site for site in found if site is not None]


def _table(node: gs.Node, place: str, sizes: Sizes) -> Site | None:
    if node.op not in ("Conv", "Add", "Gather") or node.domain:
        return None
    if node.op == "Gather" and not isinstance(node.inputs[1], gs.Constant):
        return None
    for index, constant in enumerate(node.inputs):
        if not isinstance(constant, gs.Constant) or constant.dtype != np.float32 or len(constant.shape) < 2:
            continue
        width = int(constant.shape[-1])
        if node.op == "Conv":
            width = int(np.prod(constant.shape[1:]))
        elif sizes.rotary or width != sizes.D or constant.values.size < FEWEST_POSITIONS * width:
            continue
        values = constant.values.reshape(-1, width)
        if width >= NARROWEST_TABLE and np.isfinite(values).all():
            return Site(place, node, gs.Constant(constant.name, values), True, None, place=index)
    return None


def _product(node: gs.Node, place: str) -> Site | None:
    if node.op not in ("MatMul", "Gemm") or node.domain or not _is_matrix(node.inputs[1], 2):
        return None
    rows, weight = node.inputs[:2]
    attributes = node.attrs
    if isinstance(rows, gs.Constant) or attributes.get("transA", 0):
        return None
    if attributes.get("alpha", 1.0) != 1 or attributes.get("beta", 1.0) != 1:
        return None
    site = Site(place, node, weight, bool(attributes.get("transB", 0)), rows)
    bias, addend = None, None
    if len(node.inputs) == 3 and node.inputs[2].name:
        if not isinstance(node.inputs[2], gs.Constant):
            addend = node.inputs[2]
        elif node.inputs[2].values.size == site.Y:
            bias = node.inputs[2]
        else:
            return None
    return Site(place, node, weight, site.transposed, rows, bias, addend)


def _products_of_heads(node: gs.Node, place: str, graph: gs.Graph) -> Site | None:
    if node.op != "MatMul" or node.domain or not _is_matrix(node.inputs[1], 3):
        return None
    before = node.inputs[0].inputs[0] if node.inputs[0].inputs else None
    after = only_reader(node.outputs[0], graph.outputs)
    if before is None or after is None or not (_moves_heads(before) and _moves_heads(after)):
        return None
    return Site(place, node, node.inputs[1], False, before.inputs[0])


def _moves_heads(node: gs.Node) -> bool:
    return node.op == "Transpose" and list(node.attrs.get("perm", [])) == [1, 0, 2]


def _embedding(node: gs.Node, place: str, sizes: Sizes) -> Site | None:
    """A table of tokens, or of positions as wide as the model, but not of rotations or relative biases."""
    if node.op != "Gather" or node.attrs.get("axis", 0) != 0 or isinstance(node.inputs[1], gs.Constant):
        return None
    table = node.inputs[0]
    if not _is_matrix(table, 2):
        return None
    if table.shape[0] not in (sizes.vocabulary, sizes.source_vocabulary) and not _has_positions(table, sizes):
        return None
    return Site(place, node, table, True, None)


def _has_positions(table: gs.Constant, sizes: Sizes) -> bool:
    """True for a table of positions. A model with RoPE has tables of cosines instead, which stay float32."""
    return bool(table.shape[1] == sizes.D and table.shape[0] >= FEWEST_POSITIONS and not sizes.rotary)


def _is_matrix(constant: gs.Tensor, axes: int) -> bool:
    """True for a constant of finite float32 numbers with this number of axes."""
    if not isinstance(constant, gs.Constant) or len(constant.shape) != axes or constant.dtype != np.float32:
        return False
    return bool(np.isfinite(constant.values).all())
