"""Tie the logits to the embedding: the exporter folds the transpose of a tied weight into a second copy of it.

Needs: ``x [., ., D] x W [D, vocabulary]`` whose W is, number by number, the transpose of a matrix that the decoder looks
tokens up in. Rewrites it, and the bias behind it, to ``Gemm`` with the embedding itself, transposed on reading.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.base import Builder, ModelGraphs, PassResult, tidy

NAME = "tie_embeddings"


def tie_embeddings(graphs: ModelGraphs) -> PassResult:
    """Saves vocabulary x D numbers of weights."""
    decoder = graphs.decoder
    logits = decoder.outputs[0]
    bias = None
    last = logits.inputs[0]
    if last.op == "Add":
        bias = next((tensor for tensor in last.inputs if isinstance(tensor, gs.Constant)), None)
        last = next(tensor for tensor in last.inputs if tensor is not bias).inputs[0]
    if last.op != "MatMul" or not isinstance(last.inputs[1], gs.Constant):
        return PassResult(NAME, 0, "the logits are no MatMul by a weight")
    weight = last.inputs[1]
    embedding = next((table for table in _lookup_tables(decoder) if _is_transpose(table, weight)), None)
    if embedding is None:
        return PassResult(NAME, 0, "no embedding of the decoder is the transpose of the logits' weight")

    build = Builder(decoder, NAME)
    vocabulary, D = embedding.shape
    rows = build.reshape(last.inputs[0], [-1, D])  # [R, D]
    operands = [rows, embedding]
    if bias is not None and np.any(bias.values):
        operands.append(bias)
    products = build.add("Gemm", operands, {"transB": 1})  # [R, vocabulary]
    logits.inputs.clear()
    build.add("Reshape", [products, build.constant([-1, 1, vocabulary])], outputs=[logits])
    tidy(decoder)
    saved = int(weight.values.nbytes)
    return PassResult(NAME, 1, bytes_saved=lambda job: saved)


def _lookup_tables(graph: gs.Graph) -> list[gs.Constant]:
    return [node.inputs[0] for node in graph.nodes if node.op == "Gather" and isinstance(node.inputs[0], gs.Constant)]


def _is_transpose(table: gs.Constant, weight: gs.Constant) -> bool:
    return tuple(table.shape) == tuple(weight.shape)[::-1] and bool(np.array_equal(table.values.T, weight.values))
