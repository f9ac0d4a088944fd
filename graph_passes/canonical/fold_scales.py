"""Fold the scaling of queries into their attention (Whisper): (c q) k = c (q k).

    x - MatMul W_Q - Add b_Q - Mul c - Attention(scale = s)   ->   x - MatMul W_Q - Add b_Q - Attention(scale = c s)

Needs: a Mul by one number between the projection of the queries and the attention, and no other reader of it. Saves one
product a layer; passes find the projection behind changes of layout alone, and operators scale after the product.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import LAYOUT_OPS
from tightbeam.graph_passes.builder import read_instead, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "fold_scales"


def fold_scales(graphs: ModelGraphs) -> PassResult:
    """Fold the scalings of queries in both graphs, in place."""
    matched = sum(_fold(graph) for graph in (graphs.encoder, graphs.decoder))
    return PassResult(NAME, matched, "" if matched else "no query is multiplied by one number")


def _fold(graph: gs.Graph) -> int:
    matched = sum(fold_scale(node) for node in [node for node in graph.nodes if node.op == "Attention"])
    tidy(graph)
    return matched


def fold_scale(node: gs.Node) -> bool:
    """Fold the scaling of one attention's queries; False if there is none."""
    query = node.inputs[0]
    while query.inputs and query.inputs[0].op in LAYOUT_OPS:
        query = query.inputs[0].inputs[0]
    if not query.inputs or query.inputs[0].op != "Mul" or len(query.outputs) != 1 or "scale" not in node.attrs:
        return False
    numbers = [tensor for tensor in query.inputs[0].inputs if isinstance(tensor, gs.Constant)]
    others = [tensor for tensor in query.inputs[0].inputs if not isinstance(tensor, gs.Constant)]
    if len(numbers) != 1 or len(others) != 1 or numbers[0].values.size != 1:
        return False
    node.attrs["scale"] = float(node.attrs["scale"]) * float(numbers[0].values.reshape(()))
    read_instead(query, others[0])
    return True
