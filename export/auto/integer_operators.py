"""Operators of int8 bundles on sizes like BART-large's, to measure the machine's rates of integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from tightbeam.deploy.runtimes._onnxruntime import register_library, session_options
from tightbeam.graph_passes.model import Array
from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops import DOMAIN, IR_VERSION, OPERATORS, OPSET, VERSION, functions
from tightbeam.plugins.ops.quantized_matmul import GROUP, TILE_COLUMNS

__all__ = ["integer_operators"]

SAMPLES, BEAMS, HEADS, HEAD_WIDTH = 4, 4, 16, 64
POSITIONS = 512


def integer_operators(width: int, threads: int) -> dict[str, tuple[float, Callable[[], object]]]:
    """Calls to be timed, with the operations of each, by the number of a ``Machine``.

    They are a product of ``width`` rows, a multiple of 16, with a matrix [width, width], and attention over keys and
    values, and over states. Raises RuntimeSetupError if the operators' library cannot be loaded.
    """
    generator = np.random.default_rng(0)
    queries = SAMPLES * BEAMS * HEADS

    def rows(*shape: int) -> Array:
        return generator.standard_normal(shape).astype(np.float32)

    def cached(*shape: int) -> tuple[Array, Array]:
        """Rows of integers, and their scales."""
        return generator.integers(-127, 128, shape).astype(np.int8), np.full(shape[:-1], 1 / 127, np.float32)

    mask = np.ones((SAMPLES, POSITIONS), np.bool_)
    keys, values = (cached(SAMPLES, HEADS, POSITIONS, HEAD_WIDTH) for _ in range(2))
    states = cached(SAMPLES, POSITIONS, HEADS * HEAD_WIDTH)
    source = [rows(SAMPLES * BEAMS, HEADS * HEAD_WIDTH), *keys, *values, mask]
    latent = [rows(SAMPLES * BEAMS, HEADS, HEADS * HEAD_WIDTH), *states, mask]
    tiles = generator.integers(1, 256, (width // TILE_COLUMNS, width // GROUP, TILE_COLUMNS, GROUP)).astype(np.uint8)
    product = [
        rows(width, width),
        tiles,
        np.full((1, width), 1 / 127, np.float32),
        np.zeros(width, np.float32),
        np.zeros((1, 1), np.float32),
    ]
    scale = {"scale": HEAD_WIDTH**-0.5}
    return {
        "integer_rate": (2.0 * width**3, _call("DynamicQuantizeMatMul", product, {}, threads)),
        "source_rate": (
            4.0 * queries * POSITIONS * HEAD_WIDTH,
            _call("QuantizedSourceAttention", source, scale, threads),
        ),
        "latent_rate": (
            4.0 * queries * POSITIONS * HEADS * HEAD_WIDTH,
            _call("QuantizedLatentAttention", latent, scale, threads),
        ),
    }


def _call(name: str, arrays: list[Array], attributes: Mapping[str, Any], threads: int) -> Callable[[], object]:
    """A session of one operator, to be run on its first inputs."""
    feeds = dict(zip(OPERATORS[name].input_names[: len(arrays)], arrays, strict=True))
    node = onnx.helper.make_node(name, list(feeds), ["result"], domain=DOMAIN, **attributes)
    given = [
        onnx.helper.make_tensor_value_info(key, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for key, array in feeds.items()
    ]
    result = onnx.helper.make_tensor_value_info("result", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph([node], "measured", given, [result])
    opsets = [onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid(DOMAIN, VERSION)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    model.functions.extend(functions(model.graph.node))
    options = session_options(threads)
    register_library(options, cpu_library())
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)
