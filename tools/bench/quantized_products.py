"""Times of products with a constant matrix in int8: our operators next to ONNX Runtime's, and to float32.

    python -m tools.bench.quantized_products
    python -m tools.bench.quantized_products --rows 4,32 --shapes 1024x1024 --rounds 20

Each graph multiplies one input by so many matrices that they do not fit a processor's cache together, as the layers of
a model do not. All graphs of a shape are measured in one process, in turn. Ours, ``tightbeam``, quantises the rows by
themselves; ``dynamic`` is DynamicQuantizeMatMul, with one scale for all rows and one per column of the weights;
``blocks`` is MatMulNBits with 8 bits, blocks of 128 and accuracy level 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime as ort
import typer
from onnx import helper, numpy_helper
from rich.console import Console
from rich.table import Table

from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops import DOMAIN, IR_VERSION, OPSET, VERSION
from tightbeam.plugins.ops._case import Array
from tightbeam.plugins.ops.quantized_matmul.layout import tiled
from tools.bench.turns import in_turn

ROWS = "1,4,16,32,64,512,2048"
SHAPES = "1024x3072,1024x1024,1024x4096,4096x1024,1024x50265"
MATRICES_MB = 64
"""Bytes of all matrices of a graph in int8."""
BLOCK = 128
OPSETS = {"": OPSET, DOMAIN: VERSION, "com.microsoft": 1}
Nodes = list[onnx.NodeProto]


class Product:
    """The matrices of a graph, made one after the other, and what each kind of product needs of them."""

    def __init__(self, X: int, Y: int, count: int) -> None:
        self.X, self.Y = X, Y
        generator = np.random.default_rng(0)
        self.integers = [generator.integers(-127, 128, (X, Y), np.int8) for _ in range(count)]
        self.scale = generator.uniform(0.5, 2, Y).astype(np.float32) / np.float32(127 * X**0.5)
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, values: Array) -> str:
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def float32(self, i: int, out: str) -> Nodes:
        weights = self.constant(f"w{i}", self.integers[i] * self.scale)
        return [helper.make_node("MatMul", ["x", weights], [out])]

    def dynamic(self, i: int, out: str) -> Nodes:
        inputs = ["x", self.constant(f"w{i}", self.integers[i]), self.constant(f"s{i}", self.scale)]
        return [helper.make_node("DynamicQuantizeMatMul", inputs, [out], domain="com.microsoft")]

    def blocks(self, i: int, out: str) -> Nodes:
        by_column = self.integers[i].T.astype(np.int16) + 128
        weights = np.ascontiguousarray(by_column.reshape(self.Y, self.X // BLOCK, BLOCK).astype(np.uint8))
        scales = np.repeat(self.scale, self.X // BLOCK)
        inputs = ["x", self.constant(f"w{i}", weights), self.constant(f"s{i}", scales)]
        attributes: dict[str, Any] = {"K": self.X, "N": self.Y, "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
        return [helper.make_node("MatMulNBits", inputs, [out], domain="com.microsoft", **attributes)]

    def tightbeam(self, i: int, out: str) -> Nodes:
        if i == 0:
            self.constant("bias", np.zeros(self.Y, np.float32))
            self.constant("nothing", np.zeros((1, 1), np.float32))
        weights, scale = self.constant(f"w{i}", tiled(self.integers[i])), self.constant(f"s{i}", self.scale[None])
        return [
            helper.make_node("QuantizeRows", ["x"], [f"q{i}", f"r{i}"], domain=DOMAIN),
            helper.make_node(
                "QuantizedMatMul", [f"q{i}", f"r{i}", weights, scale, "bias", "nothing"], [out], domain=DOMAIN
            ),
        ]


KINDS = ("float32", "dynamic", "blocks", "tightbeam")


def session_of(product: Product, kind: str, threads: int) -> ort.InferenceSession:
    """A graph of all products, whose outputs are the first rows, so that nothing is copied out."""
    product.constants = [numpy_helper.from_array(np.array([axis]), name) for name, axis in (("zero", 0), ("one", 1))]
    nodes: Nodes = []
    outputs = []
    for i in range(len(product.integers)):
        nodes += getattr(product, kind)(i, f"y{i}")
        nodes.append(helper.make_node("Slice", [f"y{i}", "zero", "one", "zero"], [f"first{i}"]))
        outputs.append(helper.make_tensor_value_info(f"first{i}", onnx.TensorProto.FLOAT, ["one_row", product.Y]))
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["R", product.X])
    graph = helper.make_graph(nodes, kind, [x], outputs, product.constants)
    opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(str(cpu_library()))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def errors_of(sessions: dict[str, ort.InferenceSession], product: Product) -> dict[str, float]:
    """Root mean square error of each kind, relative to that of the products themselves."""
    x = np.random.default_rng(1).standard_normal((8, product.X)).astype(np.float32)
    exact = x[:1].astype(np.float64) @ (product.integers[0] * product.scale.astype(np.float64))
    found = {kind: session.run(["first0"], {"x": x})[0] for kind, session in sessions.items()}
    return {kind: float(np.sqrt(np.mean((y - exact) ** 2) / np.mean(exact**2))) for kind, y in found.items()}


def call_of(session: ort.InferenceSession, x: Array) -> Callable[[], Any]:
    return lambda: session.run(None, {"x": x})


def main(
    rows: Annotated[str, typer.Option(help="Numbers of rows, separated by commas.")] = ROWS,
    shapes: Annotated[str, typer.Option(help="Inputs x outputs of a matrix, separated by commas.")] = SHAPES,
    rounds: Annotated[int, typer.Option(help="Runs of each graph.")] = 11,
    threads: Annotated[int, typer.Option(help="Threads of a session.")] = 2,
) -> None:
    """Measure products of all shapes at all numbers of rows."""
    table = Table(title=f"ms a product, medians of {rounds} runs, {threads} threads")
    for column in ("matrix", "rows", *KINDS, "tightbeam / best other", "GB/s", "GMAC/s"):
        table.add_column(column, justify="right")
    for shape in shapes.split(","):
        X, Y = map(int, shape.split("x"))
        product = Product(X, Y, max(1, round(MATRICES_MB * 1e6 / (X * Y))))
        sessions = {kind: session_of(product, kind, threads) for kind in KINDS}
        errors = ", ".join(f"{kind} {error:.2g}" for kind, error in errors_of(sessions, product).items())
        count = len(product.integers)
        for R in map(int, rows.split(",")):
            x = np.random.default_rng(2).standard_normal((R, X)).astype(np.float32)
            few = max(3, rounds // 3) if R >= 512 else rounds
            seconds = in_turn({kind: call_of(session, x) for kind, session in sessions.items()}, few)
            ours, other = seconds["tightbeam"], min(seconds[kind] for kind in KINDS[:-1])
            rates = f"{count * X * Y / ours / 1e9:.1f}", f"{R * count * X * Y / ours / 1e9:.0f}"
            times = (f"{1e3 * seconds[kind] / count:.3f}" for kind in KINDS)
            table.add_row(shape, str(R), *times, f"{ours / other:.2f}", *rates)
        table.add_section()
        Console().print(f"{shape}: relative errors {errors}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
