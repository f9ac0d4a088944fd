"""Turn the CPU's products and embeddings back into standard operators, which TensorRT has kernels for.

    x - Linear(W in tiles, b, r)        ->  x - MatMul(W) - Add b - Add r
    tokens - TiledGather(E^T in tiles)  ->  tokens - Gather(E); products of the same tiles: Gemm(E, transB = 1)
    x - ScreenedLinear(W in tiles, b)   ->  as Linear(W in tiles, b, 0)

The inverse of ``linear`` and ``screen_head``. Exact but for rounding.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder, tidy
from tightbeam.graph_passes.model import Array, ModelGraphs, PassResult
from tightbeam.graph_passes.precision.screen_head import ALL_LOGITS
from tightbeam.graph_passes.precision.sites import named_graphs
from tightbeam.plugins.ops import DOMAIN
from tightbeam.plugins.ops.linear.layout import untiled
from tightbeam.plugins.ops.quantized_matmul import TILE_COLUMNS

__all__ = ["REPLACED", "standard_operators"]

NAME = "standard_operators"
REPLACED = ("Linear", "TiledGather", "ScreenedLinear")
"""Operators of the CPU alone that become better nodes here than their functions have."""


def standard_operators(graphs: ModelGraphs) -> PassResult:
    """Replace the operators in both graphs, in place."""
    sizes = graphs.sizes.vocabulary, graphs.sizes.source_vocabulary
    matched = sum(_Replacement(graph, sizes).replace() for _, graph in named_graphs(graphs))
    return PassResult(NAME, matched, "" if matched else "no operator of CPUs alone")


class _Replacement:
    """Replaces the nodes of a graph; each matrix is made once. ``vocabularies``: sizes that an embedding may have."""

    def __init__(self, graph: gs.Graph, vocabularies: tuple[int, ...]) -> None:
        self.graph, self.build, self.vocabularies = graph, Builder(graph, NAME), vocabularies
        for node in [node for node in graph.nodes if node.op == "ScreenedLinear"]:
            node.op, node.inputs = "Linear", [*node.inputs[:3], self.build.constant(np.zeros((1, 1)), np.float32)]
            graph.inputs = [tensor for tensor in graph.inputs if tensor.name != ALL_LOGITS]
        nodes = [node for node in graph.nodes if node.domain == DOMAIN]
        self.nodes = {op: [node for node in nodes if node.op == op] for op in REPLACED}
        self.looked_up = {node.inputs[1].name for node in self.nodes["TiledGather"]}
        self.columns = {node.inputs[1].name: len(node.inputs[2].values) for node in self.nodes["Linear"]}
        self.matrices: dict[str, gs.Constant] = {}

    def replace(self) -> int:
        for node in self.nodes["Linear"]:
            self._product(node)
        for node in self.nodes["TiledGather"]:
            output = _detached(node)
            self.build.add("Gather", [self._matrix(node.inputs[1]), node.inputs[0]], {"axis": 0}, [output])
        tidy(self.graph)
        return sum(map(len, self.nodes.values()))

    def _product(self, node: gs.Node) -> None:
        rows, tiles, bias, addend = node.inputs
        output = _detached(node)
        biases = [bias] if np.any(bias.values) else []
        if tiles.name in self.looked_up:
            made = self.build.add("Gemm", [rows, self._matrix(tiles), *biases], {"transB": 1})
        else:
            made = self.build.add("MatMul", [rows, self._matrix(tiles)])
            made = self.build.add("Add", [made, *biases]) if biases else made
        if not isinstance(addend, gs.Constant) or np.any(addend.values):
            made = self.build.add("Add", [made, addend])
        made.inputs[0].outputs = [output]

    def _matrix(self, tiles: gs.Constant) -> gs.Constant:
        """The matrix [X, Y], or the embedding [Y, X] if tokens are looked up in it."""
        if tiles.name not in self.matrices:
            values: Array = tiles.values
            matrix = untiled(values, self.columns.get(tiles.name) or self._vocabulary(len(values)))
            if tiles.name in self.looked_up:
                matrix = np.ascontiguousarray(matrix.T)
            self.matrices[tiles.name] = gs.Constant(f"{tiles.name}.matrix", matrix)
        return self.matrices[tiles.name]

    def _vocabulary(self, tiles: int) -> int:
        """Columns of tiles that no product reads: the vocabulary that fits, or all that the tiles have room for."""
        fitting = [size for size in self.vocabularies if -(-size // TILE_COLUMNS) == tiles]
        return fitting[0] if fitting else tiles * TILE_COLUMNS


def _detached(node: gs.Node) -> gs.Tensor:
    """The output of a node, taken from it."""
    (output,) = node.outputs
    node.outputs.clear()
    return output
