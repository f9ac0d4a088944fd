"""A product of integers as an int8 bundle multiplies them, to measure the machine's rate of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort

from tightbeam.deploy.runtimes._onnxruntime import register_library, session_options
from tightbeam.graph_passes.model import Array
from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops import DOMAIN, IR_VERSION, OPSET, VERSION, functions
from tightbeam.plugins.ops.quantized_matmul import GROUP, TILE_COLUMNS

__all__ = ["integer_product"]


def integer_product(width: int, threads: int) -> Callable[[], object]:
    """A product of ``width`` rows with a matrix [width, width] in ONNX Runtime, rows quantised, to be called and timed.

    ``width`` is a multiple of 16. Raises RuntimeSetupError where the operators' library cannot be loaded.
    """
    node = onnx.helper.make_node(
        "DynamicQuantizeMatMul", ["x", "weights", "scale", "bias", "addend"], ["y"], domain=DOMAIN
    )
    generator = np.random.default_rng(0)
    tiles = generator.integers(1, 256, (width // TILE_COLUMNS, width // GROUP, TILE_COLUMNS, GROUP)).astype(np.uint8)
    constants: dict[str, Array] = {
        "weights": tiles,
        "scale": np.full((1, width), 1 / 127, np.float32),
        "bias": np.zeros(width, np.float32),
        "addend": np.zeros((1, 1), np.float32),
    }
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [width, width]) for name in "xy")
    graph = onnx.helper.make_graph(
        [node], "product", [x], [y], [onnx.numpy_helper.from_array(values, name) for name, values in constants.items()]
    )
    opsets = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid(DOMAIN, VERSION)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    model.functions.extend(functions(model.graph.node))
    options = session_options(threads)
    register_library(options, cpu_library())
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rows = generator.standard_normal((width, width)).astype(np.float32)
    return lambda: session.run(None, {"x": rows})
