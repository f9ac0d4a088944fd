"""Quantise a finished variant: constant matrices become integers of 8 bits, with a scale for each output column.

    x - MatMul(W float32) - Add b - Gelu        ->  x - DynamicQuantizeMatMul(W uint8, scale, b, ...)
    x - MatMul(W) - Add r -> y                  ->  x - DynamicQuantizeMatMul(..., r) -> y
    x - MatMul(Q); x - MatMul(K)                ->  x - QuantizeRows - QuantizedMatMul(., Q uint8); ...(., K uint8)
    tokens - Gather(E); x - Gemm(E, transB = 1) ->  tokens - QuantizedGather(E^T uint8); x - ...MatMul(E^T uint8)
    x - Transpose - MatMul(W_i) - Transpose     ->  x [R, H, X] - HeadMatMul(W uint8, scale [H, 1, Y])

The rows of x are quantised as they come, each by itself: by the product where one alone reads them, else once for all
of them. A product takes over the bias, the activation and the residual that follow it where nothing else reads what is
between. An embedding of tokens or of positions is quantised too; tied to the logits, both read one matrix. Everything
else stays float32: caches, attention, norms (``normalize_rows``), convolutions, and products whose input width is no
multiple of 4.

``forms`` says what else becomes of a product or an embedding, by its name: "blocks" gives every 128 numbers of a row,
and of a column, a scale of their own; "fp32" leaves it as it is. The guard makes that choice (``export/accuracy``).

    x - MatMul(W)                 ->  x - DynamicQuantizeMatMul(W, scale [blocks, Y])
    x - MatMul(Q); x - MatMul(K)  ->  x - Reshape [R blocks, 128] - QuantizeRows - Reshape - QuantizedMatMul(., Q, ...)

Needs: float32 graphs. Saves three quarters of the matrices. Not exact: an export counts the outputs that differ.
Operators: ``plugins/ops/quantize_rows``, ``quantized_matmul``, ``dynamic_quantize_matmul``, ``head_matmul``,
``quantized_gather``, which have CPU kernels alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder, only_reader, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassResult, Sizes
from tightbeam.graph_passes.precision.activations import activation_of
from tightbeam.graph_passes.precision.integers import QuantizedWeights
from tightbeam.graph_passes.precision.normalize_rows import normalize_rows
from tightbeam.graph_passes.precision.same_rows import same_rows
from tightbeam.graph_passes.precision.sites import Site, blocks_of, named_graphs, sites_of
from tightbeam.graph_passes.tensor_types import tensor_infos
from tightbeam.plugins.ops.quantized_matmul import ACTIVATIONS

__all__ = ["NO_FORMS", "quantize"]

NAME = "quantize"
NO_FORMS: Mapping[str, str] = MappingProxyType({})
Dimensions = list[int | str]


def quantize(graphs: ModelGraphs, forms: Mapping[str, str] = NO_FORMS) -> PassResult:
    """Quantise products and embeddings of both graphs, in place; ``forms`` are by the names of ``sites``, else int8."""
    weights = QuantizedWeights()
    matched = sum(_quantize(graph, name, graphs.sizes, weights, forms) for name, graph in named_graphs(graphs))
    return PassResult(NAME, matched, "" if matched else "no product with a constant matrix", weights.bytes_saved)


def _quantize(graph: gs.Graph, name: str, sizes: Sizes, weights: QuantizedWeights, forms: Mapping[str, str]) -> int:
    tidy(graph)
    infos = tensor_infos(graph, f"{NAME}: {name}")
    shapes = {tensor: _shape(info) for tensor, info in infos.items()}
    chosen = [site for site in sites_of(graph, name, sizes) if forms.get(site.name) != "fp32"]
    blocks = {site.name: blocks_of(site.X, forms.get(site.name, "int8")) for site in chosen}
    readers = Counter((site.rows.name, blocks[site.name]) for site in chosen if site.rows is not None)
    build = _Quantizer(Builder(graph, NAME), shapes, same_rows(graph), weights, readers)
    for site in chosen:
        if site.rows is None:
            build.embedding(site, int(infos[site.node.inputs[1].name].elem_type), blocks[site.name])
        elif site.heads:
            build.products_of_heads(site, site.rows, blocks[site.name])
        else:
            build.product(site, site.rows, blocks[site.name])
    if chosen:
        normalize_rows(build.build, {name: len(shape) for name, shape in shapes.items() if shape is not None})
    tidy(graph)
    return len(chosen)


def _shape(info: onnx.TypeProto.Tensor) -> Dimensions | None:
    if not info.HasField("shape"):
        return None
    return [dim.dim_param or ("?" if not dim.HasField("dim_value") else dim.dim_value) for dim in info.shape.dim]


@dataclass
class _Followed:
    """Nodes behind a product that one operator does with it: bias, activation, addend, and their output."""

    output: gs.Tensor
    bias: gs.Constant | None
    activation: str
    addend: gs.Tensor | None


class _Quantizer:
    """Replaces nodes of a graph."""

    def __init__(
        self,
        build: Builder,
        shapes: dict[str, Dimensions | None],
        same: dict[str, str],
        weights: QuantizedWeights,
        readers: Counter[tuple[str, int]],
    ) -> None:
        self.build, self.shapes, self.same, self.weights, self.readers = build, shapes, same, weights, readers
        self.constants: dict[int, tuple[gs.Constant, gs.Constant]] = {}
        self.rows: dict[tuple[str, int], list[gs.Tensor]] = {}
        self.leading: dict[str, gs.Tensor] = {}
        self.zero = build.constant(np.zeros((1, 1)), np.float32)

    def product(self, site: Site, rows: gs.Tensor, blocks: int) -> None:
        followed = self._follow(site)
        shape = self.shapes.get(rows.name)
        is_matrix = site.node.op == "Gemm" or (shape is not None and len(shape) == 2)
        if self.readers[rows.name, blocks] == 1:
            op, given = "DynamicQuantizeMatMul", [self._matrix_of(rows, site.X, is_matrix)]
        else:
            op, given = "QuantizedMatMul", self._quantized_rows(rows, site.X, is_matrix, blocks)
        bias = np.zeros(site.Y) if followed.bias is None else followed.bias.values.reshape(-1)
        addend = followed.addend
        if addend is None:
            addend = self.zero
        elif not is_matrix:
            addend = self.build.reshape(addend, [-1, site.Y])
        inputs = [*given, *self._matrix(site, blocks), self.build.constant(bias, np.float32), addend]
        attributes = {"activation": ACTIVATIONS[followed.activation]}
        products = self.build.variable(f"products_{self.build.count}", [self._height(rows), site.Y])
        output = followed.output
        output.inputs[0].outputs.clear()
        if is_matrix:
            products.name, output.dtype, output.shape = output.name, products.dtype, products.shape
            self.build.operator(op, inputs, attributes, [output])
        else:
            self.build.operator(op, inputs, attributes, [products])
            whole = self.build.add("Concat", [self._leading(rows), self.build.constant([site.Y])], {"axis": 0})
            self.build.add("Reshape", [products, whole], outputs=[output])

    def products_of_heads(self, site: Site, rows: gs.Tensor, blocks: int) -> None:
        after = site.node.outputs[0].outputs[0]
        output = after.outputs[0]
        after.outputs.clear()
        shape = self.shapes.get(rows.name)
        height = shape[0] if shape and shape[0] != "?" else f"height of {rows.name}"
        output.dtype, output.shape = np.dtype(np.float32), [height, site.heads, site.Y]
        self.build.operator("HeadMatMul", [rows, *self._matrix(site, blocks)], {}, [output])

    def embedding(self, site: Site, tokens_type: int, blocks: int) -> None:
        node = site.node
        tokens, output = node.inputs[1], node.outputs[0]
        if tokens_type != onnx.TensorProto.INT64:
            tokens = self.build.add("Cast", [tokens], {"to": onnx.TensorProto.INT64})
        node.outputs.clear()
        flat = self.build.reshape(tokens, [-1])
        embeddings = self.build.variable(f"embeddings_{self.build.count}", ["tokens", site.X])
        self.build.operator("QuantizedGather", [flat, *self._matrix(site, blocks)], {}, [embeddings])
        shape = self.build.add("Shape", [tokens])
        whole = self.build.add("Concat", [shape, self.build.constant([site.X])], {"axis": 0})
        self.build.add("Reshape", [embeddings, whole], outputs=[output])

    def _follow(self, site: Site) -> _Followed:
        """Take over the nodes after a product that nothing else reads the inputs of."""
        followed = _Followed(site.node.outputs[0], site.bias, "", site.addend)
        if site.addend is not None:
            return followed
        add = self._only_add(followed.output)
        bias = None if add is None else next((t for t in add.inputs if isinstance(t, gs.Constant)), None)
        if site.bias is None and add is not None and bias is not None and bias.values.shape == (site.Y,):
            followed.bias, followed.output = bias, add.outputs[0]
        found = activation_of(followed.output, self.build.graph.outputs)
        if found is not None:
            followed.activation, followed.output = found
        add = self._only_add(followed.output)
        if add is not None:
            other = next(tensor for tensor in add.inputs if tensor is not followed.output)
            if not isinstance(other, gs.Constant) and self._has_shape_of(other, site, followed.output):
                followed.addend, followed.output = other, add.outputs[0]
        return followed

    def _has_shape_of(self, other: gs.Tensor, site: Site, output: gs.Tensor) -> bool:
        """True where a tensor is known to have the shape of a product's output."""
        shape, rows = self.shapes.get(other.name), self.same.get(site.node.outputs[0].name)
        if not shape:
            return False
        if rows is not None and self.same.get(other.name, other.name) == rows and shape[-1] == site.Y:
            return True
        return "?" not in shape and self.shapes.get(output.name) == shape

    def _only_add(self, tensor: gs.Tensor) -> gs.Node | None:
        reader = only_reader(tensor, self.build.graph.outputs)
        return reader if reader is not None and reader.op == "Add" and not reader.domain else None

    def _matrix(self, site: Site, blocks: int) -> tuple[gs.Constant, gs.Constant]:
        """Tiles and scale of a site's matrix."""
        tiles, scale = self.weights.of(site, blocks)
        if id(tiles) not in self.constants:
            made = self.build.constant(tiles, np.uint8), self.build.constant(scale, np.float32)
            self.constants[id(tiles)] = made
        return self.constants[id(tiles)]

    def _matrix_of(self, rows: gs.Tensor, X: int, is_matrix: bool) -> gs.Tensor:
        return rows if is_matrix else self.build.reshape(rows, [-1, X])

    def _quantized_rows(self, rows: gs.Tensor, X: int, is_matrix: bool, blocks: int) -> list[gs.Tensor]:
        key = rows.name, blocks
        if key not in self.rows:
            matrix = self._matrix_of(rows, X // blocks, is_matrix and blocks == 1)
            height, number = self._height(rows), self.build.count
            if blocks > 1:
                height = f"{blocks} {height}"
            quantized = self.build.variable(f"rows_{number}", [height, X // blocks], np.int8)
            scale = self.build.variable(f"row_scale_{number}", [height, 1])
            self.build.operator("QuantizeRows", [matrix], {}, [quantized, scale])
            if blocks > 1:
                quantized, scale = self.build.reshape(quantized, [-1, X]), self.build.reshape(scale, [-1, blocks])
            self.rows[key] = [quantized, scale]
        return self.rows[key]

    def _height(self, rows: gs.Tensor) -> str:
        shape = self.shapes.get(rows.name)
        if shape is not None and "?" not in shape:
            return " ".join(str(size) for size in shape[:-1] if size != 1) or "one"
        return f"height of {rows.name}"

    def _leading(self, rows: gs.Tensor) -> gs.Tensor:
        """All sizes of ``rows`` but the last."""
        if rows.name not in self.leading:
            self.leading[rows.name] = self.build.add("Shape", [rows], {"start": 0, "end": -1})
        return self.leading[rows.name]
