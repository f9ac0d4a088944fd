"""Quantise a finished variant: constant matrices become integers of 8 bits, with a scale for each output column.

    x - MatMul(W float32) - Add b - Gelu        ->  x - DynamicQuantizeMatMul(W uint8, scale, b, ...)
    x - MatMul(W) - Add r -> y                  ->  x - DynamicQuantizeMatMul(..., r) -> y
    x - MatMul(Q); x - MatMul(K)                ->  x - QuantizeRows - QuantizedMatMul(., Q uint8); ...(., K uint8)
    tokens - Gather(E); x - Gemm(E, transB = 1) ->  tokens - QuantizedGather(E^T uint8); x - ...MatMul(E^T uint8)

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
Operators: ``plugins/ops/quantize_rows``, ``quantized_matmul``, ``dynamic_quantize_matmul``, ``quantized_gather``, which
have CPU kernels alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder, tidy
from tightbeam.graph_passes.model import Array, ModelGraphs, PassResult, Sizes
from tightbeam.graph_passes.precision.activations import activation_of
from tightbeam.graph_passes.precision.normalize_rows import normalize_rows
from tightbeam.graph_passes.tensor_types import tensor_infos
from tightbeam.plugins.ops.quantized_matmul import ACTIVATIONS, GROUP
from tightbeam.plugins.ops.quantized_matmul.layout import tiled

__all__ = ["BLOCK", "FORMS", "NO_FORMS", "Site", "blocks_of", "quantize", "quantized_columns", "sites"]

NAME = "quantize"
MOST = 127
FEWEST_POSITIONS = 32
"""Rows from which a table of positions is quantised."""
BLOCK = 128
"""Numbers of a block, in the form "blocks"."""
FORMS = ("int8", "blocks", "fp32")
"""Forms of a product or an embedding: a scale for each row and column, or for each of their blocks; or as it is."""
NO_FORMS: Mapping[str, str] = MappingProxyType({})
Dimensions = list[int | str]


@dataclass(frozen=True)
class Site:
    """A product or an embedding that can be quantised."""

    name: str
    """graph and node, with a dot between them"""
    node: gs.Node
    matrix: gs.Constant
    transposed: bool
    """the constant is [Y, X], as that of an embedding is"""
    rows: gs.Tensor | None
    """the rows that are multiplied, X wide; None for an embedding"""

    @property
    def X(self) -> int:
        """Numbers of a row of the product, or of an embedding."""
        return int(self.matrix.shape[1 if self.transposed else 0])

    @property
    def Y(self) -> int:
        """Columns of the product, or tokens of an embedding."""
        return int(self.matrix.shape[0 if self.transposed else 1])


def quantize(graphs: ModelGraphs, forms: Mapping[str, str] = NO_FORMS) -> PassResult:
    """Quantise products and embeddings of both graphs, in place; ``forms`` are by the names of ``sites``, else int8."""
    weights = _Weights()
    matched = sum(_quantize(graph, name, graphs.sizes, weights, forms) for name, graph in _named(graphs))
    return PassResult(NAME, matched, "" if matched else "no product with a constant matrix", weights.bytes_saved)


def sites(graphs: ModelGraphs) -> list[Site]:
    """The products and embeddings that ``quantize`` would quantise, in the order of the graphs."""
    return [site for name, graph in _named(graphs) for site in _sites(graph, name, graphs.sizes)]


def blocks_of(X: int, form: str) -> int:
    """Blocks of X numbers in a form: 1, but for "blocks" where X is a multiple of ``BLOCK``."""
    return X // BLOCK if form == "blocks" and X % BLOCK == 0 else 1


def _named(graphs: ModelGraphs) -> tuple[tuple[str, gs.Graph], ...]:
    return ("encoder", graphs.encoder), ("decoder", graphs.decoder)


def _sites(graph: gs.Graph, name: str, sizes: Sizes) -> list[Site]:
    found = []
    for node in graph.nodes:
        product = _product_of(node)
        place = f"{name}.{node.name}"
        if product is not None:
            found.append(Site(place, node, product.weight, product.transposed, product.rows))
        elif _is_embedding(node, sizes):
            found.append(Site(place, node, node.inputs[0], True, None))
    return found


@dataclass
class _Weights:
    """Quantised matrices, each made once for all its readers in a graph."""

    made: dict[tuple[int, bool, int], tuple[Array, Array, Array]] = field(default_factory=dict)
    saved: int = 0

    def quantized(self, constant: gs.Constant, transposed: bool, blocks: int) -> tuple[Array, Array]:
        """Tiles and scale [blocks, Y] of a matrix [X, Y], or of one that is its transpose."""
        values: Array = constant.values
        key = id(values), transposed, blocks
        if key not in self.made:
            integers, scale = quantized_columns(values.T if transposed else values, blocks)
            tiles = tiled(integers)
            self.made[key] = values, tiles, scale
            self.saved += values.nbytes - tiles.nbytes - scale.nbytes
        return self.made[key][1:]

    def bytes_saved(self, run: object) -> int:
        return self.saved


def quantized_columns(matrix: Array, blocks: int = 1) -> tuple[Array, Array]:
    """Quantise a matrix with a scale for each block of each column.

    Parameters
    ----------
    matrix
        Finite numbers [X, Y].
    blocks
        Blocks of a column, which divide X.

    Returns
    -------
    tuple
        Integers int8 [X, Y], and the scale float32 [blocks, Y]: numbers are integers times the scale of their block, to
        half a step.
    """
    X, Y = matrix.shape
    by_block = matrix.reshape(blocks, X // blocks, Y)
    largest = np.abs(by_block).max(axis=1)
    scale = np.where(largest > 0, largest, 1).astype(np.float32) / np.float32(MOST)
    integers = np.clip(np.rint(by_block / scale[:, None]), -MOST, MOST).astype(np.int8)
    return integers.reshape(X, Y), scale


@dataclass
class _Product:
    """A product with a constant matrix, and what follows it that one operator does with it."""

    node: gs.Node
    rows: gs.Tensor
    weight: gs.Constant
    transposed: bool
    """the constant is [Y, X]"""
    bias: gs.Constant | None = None
    activation: str = ""
    addend: gs.Tensor | None = None

    @property
    def X(self) -> int:
        return int(self.weight.shape[1 if self.transposed else 0])

    @property
    def Y(self) -> int:
        return int(self.weight.shape[0 if self.transposed else 1])


def _quantize(graph: gs.Graph, name: str, sizes: Sizes, weights: _Weights, forms: Mapping[str, str]) -> int:
    tidy(graph)
    infos = tensor_infos(graph, f"{NAME}: {name}")
    shapes = {tensor: _shape(info) for tensor, info in infos.items()}
    chosen = [site for site in _sites(graph, name, sizes) if forms.get(site.name) != "fp32"]
    blocks = {site.name: blocks_of(site.X, forms.get(site.name, "int8")) for site in chosen}
    readers = Counter((site.rows.name, blocks[site.name]) for site in chosen if site.rows is not None)
    build = _Quantizer(Builder(graph, NAME), shapes, weights, readers)
    for site in chosen:
        product = _product_of(site.node)
        if product is None:
            build.embedding(site.node, int(infos[site.node.inputs[1].name].elem_type), blocks[site.name])
        else:
            build.product(product, blocks[site.name])
    if chosen:
        normalize_rows(build.build, {name: len(shape) for name, shape in shapes.items() if shape is not None})
    tidy(graph)
    return len(chosen)


def _shape(info: onnx.TypeProto.Tensor) -> Dimensions | None:
    if not info.HasField("shape"):
        return None
    return [dim.dim_param or ("?" if not dim.HasField("dim_value") else dim.dim_value) for dim in info.shape.dim]


def _product_of(node: gs.Node) -> _Product | None:
    if node.op not in ("MatMul", "Gemm") or node.domain or not isinstance(node.inputs[1], gs.Constant):
        return None
    rows, weight = node.inputs[:2]
    if isinstance(rows, gs.Constant) or len(weight.shape) != 2:
        return None
    attributes = node.attrs
    if attributes.get("transA", 0) or attributes.get("alpha", 1.0) != 1 or attributes.get("beta", 1.0) != 1:
        return None
    product = _Product(node, rows, weight, bool(attributes.get("transB", 0)))
    if product.X % GROUP or weight.dtype != np.float32 or not np.isfinite(weight.values).all():
        return None
    if len(node.inputs) == 3 and node.inputs[2].name:
        if not isinstance(node.inputs[2], gs.Constant):
            product.addend = node.inputs[2]
        elif node.inputs[2].values.size == product.Y:
            product.bias = node.inputs[2]
        else:
            return None
    return product


def _is_embedding(node: gs.Node, sizes: Sizes) -> bool:
    """True for a table of tokens, or of positions as wide as the model; not for one of rotations or relative biases."""
    if node.op != "Gather" or not isinstance(node.inputs[0], gs.Constant) or node.attrs.get("axis", 0) != 0:
        return False
    table = node.inputs[0]
    return (
        len(table.shape) == 2
        and table.dtype == np.float32
        and (table.shape[0] in (sizes.vocabulary, sizes.source_vocabulary) or _has_positions(table, sizes))
        and table.shape[1] % GROUP == 0
        and not isinstance(node.inputs[1], gs.Constant)
        and bool(np.isfinite(table.values).all())
    )


def _has_positions(table: gs.Constant, sizes: Sizes) -> bool:
    """True for a table of positions. A model that rotates has none, but tables of cosines, which stay float32."""
    return bool(table.shape[1] == sizes.D and table.shape[0] >= FEWEST_POSITIONS and not sizes.rotary)


class _Quantizer:
    """Replaces nodes of a graph."""

    def __init__(
        self,
        build: Builder,
        shapes: dict[str, Dimensions | None],
        weights: _Weights,
        readers: Counter[tuple[str, int]],
    ) -> None:
        self.build, self.shapes, self.weights, self.readers = build, shapes, weights, readers
        self.constants: dict[int, tuple[gs.Constant, gs.Constant]] = {}
        self.rows: dict[tuple[str, int], list[gs.Tensor]] = {}
        self.leading: dict[str, gs.Tensor] = {}
        self.zero = build.constant(np.zeros((1, 1)), np.float32)

    def product(self, product: _Product, blocks: int) -> None:
        output = self._follow(product)
        shape = self.shapes.get(product.rows.name)
        is_matrix = product.node.op == "Gemm" or (shape is not None and len(shape) == 2)
        if self.readers[product.rows.name, blocks] == 1:
            op, rows = "DynamicQuantizeMatMul", [self._matrix_of(product.rows, product.X, is_matrix)]
        else:
            op, rows = "QuantizedMatMul", self._quantized_rows(product.rows, product.X, is_matrix, blocks)
        tiles, weight_scale = self._matrix(product.weight, product.transposed, blocks)
        bias = np.zeros(product.Y) if product.bias is None else product.bias.values.reshape(-1)
        addend = product.addend
        if addend is None:
            addend = self.zero
        elif not is_matrix:
            addend = self.build.reshape(addend, [-1, product.Y])
        inputs = [*rows, tiles, weight_scale, self.build.constant(bias, np.float32), addend]
        attributes = {"activation": ACTIVATIONS[product.activation]}
        products = self.build.variable(f"products_{self.build.count}", [self._height(product.rows), product.Y])
        readers = output.inputs[0]
        readers.outputs.clear()
        if is_matrix:
            products.name, output.dtype, output.shape = output.name, products.dtype, products.shape
            self.build.operator(op, inputs, attributes, [output])
        else:
            self.build.operator(op, inputs, attributes, [products])
            whole = self.build.add(
                "Concat", [self._leading(product.rows), self.build.constant([product.Y])], {"axis": 0}
            )
            self.build.add("Reshape", [products, whole], outputs=[output])

    def embedding(self, node: gs.Node, tokens_type: int, blocks: int) -> None:
        table, tokens = node.inputs
        tiles, scale = self._matrix(table, True, blocks)
        if tokens_type != onnx.TensorProto.INT64:
            tokens = self.build.add("Cast", [tokens], {"to": onnx.TensorProto.INT64})
        output, D = node.outputs[0], int(table.shape[1])
        node.outputs.clear()
        flat = self.build.reshape(tokens, [-1])
        embeddings = self.build.variable(f"embeddings_{self.build.count}", ["tokens", D])
        self.build.operator("QuantizedGather", [flat, tiles, scale], {}, [embeddings])
        shape = self.build.add("Shape", [tokens])
        whole = self.build.add("Concat", [shape, self.build.constant([D])], {"axis": 0})
        self.build.add("Reshape", [embeddings, whole], outputs=[output])

    def _follow(self, product: _Product) -> gs.Tensor:
        """Take over the nodes after a product that nothing else reads the inputs of; returns the last one's output."""
        output = product.node.outputs[0]
        if product.addend is None and product.bias is None:
            add = self._only_reader(output, "Add")
            bias = None if add is None else next((t for t in add.inputs if isinstance(t, gs.Constant)), None)
            if add is not None and bias is not None and bias.values.shape == (product.Y,):
                product.bias, output = bias, add.outputs[0]
        if product.addend is None:
            found = activation_of(output, self.build.graph.outputs)
            if found is not None:
                product.activation, output = found
            add = self._only_reader(output, "Add")
            if add is not None:
                other = next(tensor for tensor in add.inputs if tensor is not output)
                shape = self.shapes.get(output.name)
                if (
                    not isinstance(other, gs.Constant)
                    and shape
                    and "?" not in shape
                    and self.shapes.get(other.name) == shape
                ):
                    product.addend, output = other, add.outputs[0]
        return output

    def _only_reader(self, tensor: gs.Tensor, *ops: str) -> gs.Node | None:
        is_output = any(output is tensor for output in self.build.graph.outputs)
        if is_output or len(tensor.outputs) != 1 or tensor.outputs[0].op not in ops or tensor.outputs[0].domain:
            return None
        reader = tensor.outputs[0]
        return reader if sum(read is tensor for read in reader.inputs) == 1 else None

    def _matrix(self, constant: gs.Constant, transposed: bool, blocks: int) -> tuple[gs.Constant, gs.Constant]:
        tiles, scale = self.weights.quantized(constant, transposed, blocks)
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
