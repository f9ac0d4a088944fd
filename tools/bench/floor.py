"""The floor of a graph: its products with constant matrices, alone, which no engine on this processor can avoid."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from tightbeam.deploy import Bundle
from tightbeam.deploy.arrays import Array
from tightbeam.deploy.bundle.manifest import WEIGHTS, GraphEntry
from tightbeam.deploy.runtimes._onnxruntime import session_options
from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops import DOMAIN, IR_VERSION, OPSET, VERSION

__all__ = ["FLOORS", "Floor"]

ATTENTIONS = ("Attention", "EncoderAttention")
Attention = tuple[int, int, int, int]
"""[B, H, N, K] of the two products of each node of ATTENTIONS."""
TILE, GROUP = 16, 4
"""Columns and numbers of a row that lie side by side in the weights of QuantizedMatMul."""


@dataclass(frozen=True)
class _Product:
    """A product with a matrix [X, Y], with its transpose, or with its tiles [tiles, X, 16]."""

    weight: onnx.TensorProto
    transposed: bool = False
    columns: int = 0
    """Y of a matrix in tiles; else 0"""

    @property
    def X(self) -> int:
        return int(self.weight.dims[self.transposed or self.columns > 0])

    @property
    def Y(self) -> int:
        return self.columns or int(self.weight.dims[not self.transposed])


Products = dict[str, _Product]
"""Products by the names of their results."""


@dataclass
class _Graph:
    """Nodes, constants, and the shapes of inputs and outputs."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    inputs: dict[str, tuple[int | str, ...]] = field(default_factory=dict)
    outputs: dict[str, tuple[int | str, ...]] = field(default_factory=dict)
    int32_outputs: bool = False

    def constant(self, name: str, values: Array) -> str:
        self.constants[name] = numpy_helper.from_array(values, name)
        return name


def _fp32(graph: _Graph, products: Products) -> None:
    none = graph.constant("none", np.zeros((1, 1), np.float32))
    for y, product in products.items():
        graph.constants[product.weight.name] = product.weight
        if product.columns:
            bias = graph.constant(f"bias{product.Y}", np.zeros(product.Y, np.float32))
            inputs = [f"x{product.X}", product.weight.name, bias, none]
            graph.nodes.append(helper.make_node("Linear", inputs, [y], domain=DOMAIN))
            continue
        operator = "Gemm" if product.transposed else "MatMul"
        attributes: dict[str, Any] = {"transB": 1} if product.transposed else {}
        graph.nodes.append(helper.make_node(operator, [f"x{product.X}", product.weight.name], [y], **attributes))


def _int8(graph: _Graph, products: Products) -> None:
    """Our operators; the rows of a width are quantised once. Widths that they do not take stay in float32."""
    _fp32(graph, {y: product for y, product in products.items() if product.X % GROUP})
    products = {y: product for y, product in products.items() if not product.X % GROUP}
    random = np.random.default_rng(0)
    none = graph.constant("none", np.zeros((1, 1), np.float32))
    for X in sorted({product.X for product in products.values()}):
        graph.nodes.append(helper.make_node("QuantizeRows", [f"x{X}"], [f"q{X}", f"s{X}"], domain=DOMAIN))
    for y, product in products.items():
        X, Y = product.X, product.Y
        tiles = random.integers(0, 256, (-(-Y // TILE), X // GROUP, TILE, GROUP), np.uint8)
        weights = graph.constant(f"w_{y}", tiles)
        scale = graph.constant(f"scale{Y}", np.full((1, Y), 1e-4, np.float32))
        bias = graph.constant(f"bias{Y}", np.zeros(Y, np.float32))
        inputs = [f"q{X}", f"s{X}", weights, scale, bias, none]
        graph.nodes.append(helper.make_node("QuantizedMatMul", inputs, [y], domain=DOMAIN))


def _int8_onnxruntime(graph: _Graph, products: Products) -> None:
    """ONNX Runtime's products of integers, which are not even scaled; the rows of a width are quantised once."""
    random = np.random.default_rng(0)
    graph.int32_outputs = True
    for X in sorted({product.X for product in products.values()}):
        graph.nodes.append(helper.make_node("DynamicQuantizeLinear", [f"x{X}"], [f"q{X}", f"s{X}", f"z{X}"]))
    for y, product in products.items():
        weights = graph.constant(f"w_{y}", random.integers(-127, 128, (product.X, product.Y), np.int8))
        inputs = [f"q{product.X}", weights, f"z{product.X}"]
        graph.nodes.append(helper.make_node("MatMulInteger", inputs, [y]))


FLOORS: dict[str, Callable[[_Graph, Products], None]] = {
    "fp32": _fp32,
    "int8": _int8,
    "int8-onnxruntime": _int8_onnxruntime,
}
"""Products in float32 with the bundle's weights, and in int8 with random ones."""


class Floor:
    """The products of a graph of a float32 bundle.

    Parameters
    ----------
    bundle, graph
        Whose products they are.
    threads
        Threads of ONNX Runtime; all cores by default.
    kind
        A name of `FLOORS`.
    attention
        Add the two products, in float32, of each node of `ATTENTIONS`.
    """

    def __init__(
        self, bundle: Bundle, graph: GraphEntry, threads: int | None, kind: str = "fp32", attention: bool = False
    ) -> None:
        model = onnx.load(bundle.file(graph), load_external_data=False)
        products = _products(model)
        floor = _Graph()
        FLOORS[kind](floor, products)
        floor.inputs = {f"x{product.X}": ("R", product.X) for product in products.values()}
        floor.outputs = {y: ("R", product.Y) for y, product in products.items()}
        integers = set(floor.outputs) if floor.int32_outputs else set()
        if attention:
            floor.inputs |= {"q": ("B", "H", "N", "K"), "k_t": ("B", "H", "K", "N"), "v": ("B", "H", "N", "K")}
            for i in range(sum(node.op_type in ATTENTIONS for node in model.graph.node)):
                floor.nodes.append(helper.make_node("MatMul", ["q", "k_t"], [f"s{i}"]))
                floor.nodes.append(helper.make_node("MatMul", [f"s{i}", "v"], [f"o{i}"]))
                floor.outputs[f"o{i}"] = ("B", "H", "N", "K")
        self._inputs, self._outputs = floor.inputs, floor.outputs
        self._types = {name: np.int32 if name in integers else np.float32 for name in floor.outputs}
        self._session = _session(floor, self._types, bundle, threads)

    def at(self, rows: int, attention: Attention = (1, 1, 1, 1)) -> Callable[[], None]:
        """Return a call that multiplies ``rows`` rows by each matrix."""
        sizes: dict[int | str, int] = {"R": rows, **dict(zip("BHNK", attention, strict=True))}

        def fixed(shape: tuple[int | str, ...]) -> tuple[int, ...]:
            return tuple(size if isinstance(size, int) else sizes[size] for size in shape)

        random = np.random.default_rng(0)
        binding = self._session.io_binding()
        kept = {name: random.standard_normal(fixed(shape), np.float32) for name, shape in self._inputs.items()}
        for name, array in kept.items():
            binding.bind_cpu_input(name, array)
        # One buffer for all results of a shape: a floor does not pay for memory that the model would use again.
        buffers: dict[Any, ort.OrtValue] = {}
        for name, shape in self._outputs.items():
            key = fixed(shape), self._types[name]
            if key not in buffers:
                buffers[key] = ort.OrtValue.ortvalue_from_numpy(np.zeros(*key))
            binding.bind_ortvalue_output(name, buffers[key])

        def run(_kept: object = (kept, buffers)) -> None:
            self._session.run_with_iobinding(binding)

        return run


def _products(model: onnx.ModelProto) -> Products:
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    found: list[_Product] = []
    for node in model.graph.node:
        weight = weights.get(node.input[1]) if len(node.input) > 1 else None
        if weight is None:
            continue
        if node.op_type in ("MatMul", "Gemm") and len(weight.dims) == 2:
            found.append(_Product(weight, any(a.name == "transB" and a.i for a in node.attribute)))
        elif node.op_type == "Linear":
            found.append(_Product(weight, columns=int(weights[node.input[2]].dims[0])))
    return {f"y{i}": product for i, product in enumerate(found)}


def _session(floor: _Graph, types: dict[str, Any], bundle: Bundle, threads: int | None) -> ort.InferenceSession:
    graph = helper.make_graph(
        floor.nodes,
        "floor",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in floor.inputs.items()],
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(types[name])), shape)
            for name, shape in floor.outputs.items()
        ],
        list(floor.constants.values()),
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, VERSION)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    options = session_options(threads)
    if library := cpu_library():
        options.register_custom_ops_library(str(library))
    with tempfile.TemporaryDirectory(dir=bundle.path.parent) as folder:
        os.link(bundle.path / WEIGHTS, Path(folder) / WEIGHTS)
        onnx.save_model(model, Path(folder) / "floor.onnx")
        return ort.InferenceSession(str(Path(folder) / "floor.onnx"), options, providers=["CPUExecutionProvider"])
