"""Quantise a finished variant: constant matrices become integers of 8 bits, with a scale for each output column.

    x - MatMul(W float32) - Add b - Gelu        ->  x - DynamicQuantizeMatMul(W uint8, scale, b, ...)
    x - MatMul(W) - Add r -> y                  ->  x - DynamicQuantizeMatMul(..., r) -> y
    x - MatMul(Q); x - MatMul(K)                ->  x - QuantizeRows - QuantizedMatMul(., Q uint8); ...(., K uint8)
    tokens - Gather(E); x - Gemm(E, transB = 1) ->  tokens - QuantizedGather(E^T uint8); x - ...MatMul(E^T uint8)
    x - Transpose - MatMul(W_i) - Transpose     ->  x [R, H, X] - HeadMatMul(W uint8, scale [H, 1, Y])
    x - Conv(W float32); x - Add(P float32)     ->  x - Conv(DequantizeLinear(W uint8, scale)); ... Add(...)

Each row of x is quantised by itself in every run: by its product, if only one product reads it, else once for all of
them. A product takes over the bias, the activation and the residual that follow it, if nothing else reads the tensors
in between. An embedding of tokens or of positions is quantised too; if it is tied to the logits, both read one matrix.
Kernels of convolutions and positions that are added are stored in int8, and computed in float32. Everything else stays
float32: caches, attention, norms, and products whose input width is not a multiple of 4.

``forms`` gives products and embeddings another form, by name: "w8a16" keeps 15 bits of a product's rows, and "fp32"
leaves it as it is. "w4a16" has weights of 4 bits as well, which ``int4`` gives, and "blocks" several scales in a
column, with matrices that ``made`` has; so has "ggml", with a scale for 32 numbers of a row and of a column. The guard
makes that choice (``export/accuracy``).

    x - MatMul(W)                 ->  x - SplitRowsMatMul(W uint8, scale), or x - Int4MatMul(W uint8, scales, scale)
    tokens - Gather(E)            ->  tokens - Int4Gather(E^T uint8, scales, scale), if the form is "w4a16"
    x - Transpose - MatMul(W_i) - Transpose  ->  x - SplitRowsHeadMatMul(W uint8, scale)

Needs: float32 graphs. Saves three quarters of the matrices. Not exact: an export counts the outputs that differ.
Operators: ``plugins/ops/quantize_rows``, ``quantized_matmul``, ``dynamic_quantize_matmul``, ``split_rows_matmul``,
``int4_matmul``, ``head_matmul``, ``split_rows_head_matmul``, ``quantized_gather``, ``int4_gather``, which have CPU
kernels alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import tidy
from tightbeam.graph_passes.model import ModelGraphs, PassResult, Sizes
from tightbeam.graph_passes.precision.int4 import Int4Matrix
from tightbeam.graph_passes.precision.integers import IN_INT8, Made, QuantizedWeights
from tightbeam.graph_passes.precision.products import Products
from tightbeam.graph_passes.precision.sites import Site, named_graphs, sites_of, tables_of

__all__ = ["NO_FORMS", "NO_INT4", "quantize", "with_short_rows"]

NAME = "quantize"
NO_FORMS: Mapping[str, str] = MappingProxyType({})
NO_INT4: Mapping[str, Int4Matrix] = MappingProxyType({})
WIDE_ROWS = frozenset({"w4a16", "w8a16", "blocks"})
"""Forms whose rows keep 15 bits."""
NARROW = {"SplitRowsMatMul": "DynamicQuantizeMatMul", "SplitRowsHeadMatMul": "HeadMatMul"}
"""Products of rows of 15 bits, and the products of rows of 8 bits with the same inputs."""


def quantize(
    graphs: ModelGraphs,
    forms: Mapping[str, str] = NO_FORMS,
    int4: Mapping[str, Int4Matrix] = NO_INT4,
    made: Made | None = None,
) -> PassResult:
    """Quantise both graphs, in place.

    Parameters
    ----------
    graphs
        Float32 graphs.
    forms
        Forms by names of ``sites``, int8 for all others.
    int4
        The matrices of the products and embeddings of the form "w4a16", by their names. Readers of one matrix have the
        same one.
    made
        Quantised matrices that the copies of these graphs share. Those that it lacks are added.
    """
    weights = QuantizedWeights(forms, int4, {} if made is None else made)
    matched = sum(_quantize(graph, name, graphs.sizes, weights, forms) for name, graph in named_graphs(graphs))
    return PassResult(NAME, matched, "" if matched else "no product with a constant matrix", weights.bytes_saved)


def with_short_rows(graphs: ModelGraphs, names: Collection[str], found: Sequence[Site], made: Made) -> ModelGraphs:
    """Copy of quantised graphs in which products of the form "w8a16" have the form "int8", with the same outputs as if
    they had been quantised so.

    Parameters
    ----------
    graphs
        Graphs after ``to_precision``.
    names
        Sites, of those whose form is "w8a16".
    found
        All sites of the float32 graphs.
    made
        What ``quantize`` made of their matrices.
    """
    short = {
        (site.name.partition(".")[0], id(made[id(site.matrix.values), site.transposed, IN_INT8][1][0]))
        for site in found
        if site.name in names and site.rows is not None
    }
    graphs = replace(graphs.copy(), prompt=None, prefill=None)
    for name, graph in named_graphs(graphs):
        for node in graph.nodes:
            if (node.op in NARROW or node.op == "QuantizedBeamTopK") and (name, id(node.inputs[1].values)) in short:
                node.op = NARROW.get(node.op, node.op)
                node.attrs.pop("split", None)
    return graphs


def _quantize(graph: gs.Graph, name: str, sizes: Sizes, weights: QuantizedWeights, forms: Mapping[str, str]) -> int:
    tidy(graph)
    chosen = [site for site in sites_of(graph, name, sizes) if forms.get(site.name) != "fp32"]
    wide = {site.name for site in chosen if forms.get(site.name) in WIDE_ROWS}
    readers = Counter(site.rows.name for site in chosen if site.rows is not None and site.name not in wide)
    quantizer = _Quantizer(Products(graph, NAME, name), weights, wide, readers)
    for site in chosen:
        quantizer.replace(site)
    tables = [site for site in tables_of(graph, name, sizes) if forms.get(site.name) != "fp32"]
    for site in tables:
        quantizer.store(site)
    tidy(graph)
    return len(chosen) + len(tables)


class _Quantizer:
    """Replaces products and embeddings of a graph with operators of integers.

    ``wide`` names the products whose rows keep 15 bits, and ``readers`` counts the others that read each tensor.
    """

    def __init__(self, products: Products, weights: QuantizedWeights, wide: set[str], readers: Counter[str]) -> None:
        self.products, self.build, self.weights = products, products.build, weights
        self.wide, self.readers = wide, readers
        self.constants: dict[int, list[gs.Constant]] = {}
        self.rows: dict[str, list[gs.Tensor]] = {}

    def replace(self, site: Site) -> None:
        if site.rows is None:
            op = "Int4Gather" if self._form(site) == "w4a16" else "QuantizedGather"
            self.products.embedding(site, op, self._matrix(site))
        elif site.heads:
            self._products_of_heads(site, site.rows)
        elif site.name in self.wide or self.readers[site.rows.name] == 1 or self._form(site) == "ggml":
            split = "Int4MatMul" if self._form(site) == "w4a16" else "SplitRowsMatMul"
            op = split if site.name in self.wide else "DynamicQuantizeMatMul"
            rows = self.products.matrix_of(site, site.X)
            self.products.product(site, op, [rows, *self._matrix(site)], activates=True)
        else:
            inputs = [*self._quantized_rows(site, site.rows), *self._matrix(site)]
            self.products.product(site, "QuantizedMatMul", inputs, activates=True)

    def _form(self, site: Site) -> str:
        return self.weights.forms.get(site.name, "int8")

    def store(self, site: Site) -> None:
        """Keep a table in integers, and make it float32 in every run."""
        assert site.place is not None
        shape = list(site.node.inputs[site.place].shape)
        given = [self.build.constant(array, array.dtype) for array in self.weights.table_of(site)]
        table = self.build.add("DequantizeLinear", given, {"axis": 0})
        site.node.inputs[site.place] = table if len(shape) == 2 else self.build.reshape(table, shape)

    def _products_of_heads(self, site: Site, rows: gs.Tensor) -> None:
        after = site.node.outputs[0].outputs[0]
        output = after.outputs[0]
        after.outputs.clear()
        shape = self.products.shapes.get(rows.name)
        height = shape[0] if shape and shape[0] != "?" else f"height of {rows.name}"
        output.dtype, output.shape = np.dtype(np.float32), [height, site.heads, site.Y]
        op = "SplitRowsHeadMatMul" if site.name in self.wide else "HeadMatMul"
        self.build.operator(op, [rows, *self._matrix(site)], {}, [output])

    def _matrix(self, site: Site) -> list[gs.Constant]:
        """Tiles and scales of a site's matrix."""
        made = self.weights.of(site)
        if id(made) not in self.constants:
            self.constants[id(made)] = [self.build.constant(array, array.dtype) for array in made]
        return self.constants[id(made)]

    def _quantized_rows(self, site: Site, rows: gs.Tensor) -> list[gs.Tensor]:
        if rows.name not in self.rows:
            matrix = self.products.matrix_of(site, site.X)
            height, number = self.products.height_of(rows), self.build.count
            quantized = self.build.variable(f"rows_{number}", [height, site.X], np.int8)
            scale = self.build.variable(f"row_scale_{number}", [height, 1])
            self.build.operator("QuantizeRows", [matrix], {}, [quantized, scale])
            self.rows[rows.name] = [quantized, scale]
        return self.rows[rows.name]
