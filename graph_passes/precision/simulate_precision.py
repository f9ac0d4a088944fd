"""Simulate the rounding of ``lower_precision`` on a runtime that computes in float32 alone (ONNX Runtime's CPU).

    node - x float16 - node                ->    node - x float32 - Cast float16 - Cast float32 - node
    x float16 - Cast float32               ->    x, rounded

A low tensor becomes a float32 tensor of low numbers. Two Casts round it behind the node or graph input that it comes
from; weights are rounded once. All other casts are removed, and all inputs and outputs are float32. Operations then
compute in float32 from low numbers and round their results, like a GPU, whose products accumulate in float32.

Needs: graphs after ``lower_precision``. Saves nothing: it measures.
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
    """Make both graphs float32 with the roundings of float16 or bfloat16, in place; ``matched`` counts these."""
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
    """Round ``tensor`` for all its readers, and for the graph's output."""
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
