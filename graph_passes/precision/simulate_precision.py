"""What ``lower_precision`` costs, measured on a runtime that computes in float32 alone (ONNX Runtime's CPU).

In place of a low tensor stands a float32 tensor of low numbers: rounded, by a Cast to the low type and back, where a
node, a graph input or a weight gives it. The casts between both types are gone, and all inputs and outputs are float32.
Operations then compute in float32 from low numbers, and round what they give: what a GPU does, whose products and whose
operators of ours accumulate in float32.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import read_instead, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassResult
from tightbeam.graph_passes.precision.lower_precision import LAYOUT, LOW_TYPES
from tightbeam.graph_passes.tensor_types import tensor_types

NAME = "simulate_precision"
FLOAT = onnx.TensorProto.FLOAT
LOW = {onnx.helper.np_dtype_to_tensor_dtype(dtype) for dtype in LOW_TYPES.values()}
FLOAT32 = np.dtype(np.float32)


def simulate_precision(graphs: ModelGraphs) -> PassResult:
    """Both graphs in float32, rounded wherever they were float16 or bfloat16; ``matched`` counts the roundings."""
    matched = sum(_simulate(graph, name) for graph, name in ((graphs.encoder, "encoder"), (graphs.decoder, "decoder")))
    return PassResult(NAME, matched, "" if matched else "no tensor is float16 or bfloat16")


def _simulate(graph: gs.Graph, name: str) -> int:
    tidy(graph)
    types = tensor_types(graph, f"{NAME}: {name}")
    low = {tensor: kind for tensor, kind in types.items() if kind in LOW}
    constants = [
        tensor for tensor in graph.tensors().values() if isinstance(tensor, gs.Constant) and tensor.name in low
    ]
    for constant in constants:
        read_instead(constant, gs.Constant(constant.name, constant.values.astype(np.float32)))
    given = [tensor for tensor in graph.inputs if tensor.name in low]
    moved = [tensor for node in graph.nodes if node.op in LAYOUT for tensor in node.outputs if tensor.name in low]
    for node in graph.nodes:
        given += [tensor for tensor in node.outputs if tensor.name in low and node.op not in LAYOUT]
        if node.op == "Cast" and {types[tensor.name] for tensor in (*node.inputs, *node.outputs)} <= {
            FLOAT,
            *low.values(),
        }:
            node.op, node.attrs = "Identity", {}
    for tensor in (*moved, *given):
        tensor.dtype = FLOAT32
    for tensor in given:
        _round(graph, tensor, low[tensor.name])
    tidy(graph)
    return len(constants) + len(given)


def _round(graph: gs.Graph, tensor: gs.Tensor, kind: int) -> None:
    """Let all that reads ``tensor``, or takes it as the graph's output, have it rounded."""
    name = tensor.name
    low = gs.Variable(f"{name}.low", dtype=kind)
    rounded = gs.Variable(f"{name}.rounded", dtype=FLOAT32, shape=tensor.shape)
    read_instead(tensor, rounded)
    for index, output in enumerate(graph.outputs):
        if output is tensor:
            graph.outputs[index] = rounded
            tensor.name, rounded.name = f"{name}.exact", name
    for to, source, target in ((kind, tensor, low), (FLOAT, low, rounded)):
        graph.nodes.append(gs.Node("Cast", name=target.name, attrs={"to": to}, inputs=[source], outputs=[target]))
