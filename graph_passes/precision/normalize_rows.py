"""Norms of a quantised graph as NormalizeRows, whose kernel is faster than ONNX Runtime's own.

    x [R, X] - LayerNormalization(w, b, epsilon)  ->  x - NormalizeRows(w, b, epsilon, centred = 1)
    x [R, X] - RMSNormalization(w, epsilon)       ->  x - NormalizeRows(w, 0, epsilon, centred = 0)

With more axes, x is reshaped to rows before, and back after. Needs: a norm over the last axis, with weight and bias
that are constants of that width. Exact but for rounding. For int8 alone, which no GPU runs: the operator
(``plugins/ops/normalize_rows``) has a CPU kernel alone, and its function many nodes.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassResult
from tightbeam.graph_passes.precision.sites import named_graphs
from tightbeam.graph_passes.tensor_types import tensor_infos

__all__ = ["normalize_rows"]

NAME = "normalize_rows"
CENTRED = {"LayerNormalization": 1, "RMSNormalization": 0}
EPSILON = 1e-5
"""Default of ONNX's operators."""


def normalize_rows(graphs: ModelGraphs) -> PassResult:
    """Replace the norms of both graphs, in place."""
    matched = sum(_replace(graph, name) for name, graph in named_graphs(graphs))
    return PassResult(NAME, matched, "" if matched else "no norm over a last axis with constants")


def _replace(graph: gs.Graph, name: str) -> int:
    tidy(graph)
    infos = tensor_infos(graph, f"{NAME}: {name}")
    ranks = {tensor: len(info.shape.dim) for tensor, info in infos.items() if info.HasField("shape")}
    build = Builder(graph, NAME)
    norms = [node for node in graph.nodes if _is_norm_of_rows(node, ranks)]
    for node in norms:
        rows, weight, *bias = node.inputs
        X = int(weight.values.size)
        is_matrix = _rank(rows, ranks) == 2
        zeros = build.constant(np.zeros(X), np.float32)
        inputs = [rows if is_matrix else build.reshape(rows, [-1, X]), weight, *(bias or [zeros])]
        output = node.outputs[0]
        node.outputs.clear()
        attributes = {"epsilon": node.attrs.get("epsilon", EPSILON), "centred": CENTRED[node.op]}
        if is_matrix:
            output.dtype = np.dtype(np.float32)
            output.shape = output.shape or [f"height of {output.name}", X]
            build.operator("NormalizeRows", inputs, attributes, [output])
        else:
            normalized = build.variable(f"normalized_{build.count}", [f"height of {output.name}", X])
            build.operator("NormalizeRows", inputs, attributes, [normalized])
            build.add("Reshape", [normalized, build.add("Shape", [rows])], outputs=[output])
    tidy(graph)
    return len(norms)


def _rank(tensor: gs.Tensor, ranks: dict[str, int]) -> int:
    """Number of axes; 0 if unknown."""
    return len(tensor.shape) if tensor.shape is not None else ranks.get(tensor.name, 0)


def _is_norm_of_rows(node: gs.Node, ranks: dict[str, int]) -> bool:
    if node.op not in CENTRED or node.domain or len([output for output in node.outputs if output.name]) != 1:
        return False
    rank = _rank(node.inputs[0], ranks)
    constants = node.inputs[1:]
    return (
        rank >= 2
        and node.attrs.get("axis", -1) in (-1, rank - 1)
        and node.attrs.get("stash_type", 1) == 1
        and all(isinstance(tensor, gs.Constant) and len(tensor.shape) == 1 for tensor in constants)
        and all(tensor.dtype == np.float32 and tensor.shape == constants[0].shape for tensor in constants)
    )
