"""Tie the logits to the embedding: read the tied weight [vocabulary, D] as it is.

    Gather(E [vocabulary, D], tokens)                      Gather(E, tokens)
    x - MatMul E^T [D, vocabulary] - Add b -> logits  ->   x - Gemm(., E, b, transB = 1) - Reshape -> logits

The exporter makes the transpose of a small tied weight a second constant. It leaves a large one to the runtime, which
makes the copy when it loads the graph.

Needs: ``x [., ., D] x W [D, vocabulary]``, with W the transpose of a constant, by a Transpose node or, number by
number, of a matrix that the decoder looks tokens up in. A bias of zeros is dropped. Saves vocabulary x D numbers.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "tie_embeddings"


def tie_embeddings(graphs: ModelGraphs) -> PassResult:
    """Read the tied weight in place of its transpose in the decoder, in place."""
    decoder = graphs.decoder
    logits = decoder.outputs[0]
    bias = None
    last = logits.inputs[0]
    if last.op == "Add":
        bias = next((tensor for tensor in last.inputs if isinstance(tensor, gs.Constant)), None)
        last = next(tensor for tensor in last.inputs if tensor is not bias).inputs[0]
    if last.op != "MatMul":
        return PassResult(NAME, 0, f"the logits come from {last.op}, expected MatMul")
    embedding = _transposed_constant(decoder, last.inputs[1])
    if embedding is None:
        return PassResult(NAME, 0, "the logits' weight is the transpose of no embedding of the decoder")

    build = Builder(decoder, NAME)
    vocabulary, D = embedding.shape
    operands = [build.rows(last.inputs[0], D), embedding]  # [R, D]
    if bias is not None and np.any(bias.values):
        operands.append(bias)
    products = build.add("Gemm", operands, {"transB": 1})  # [R, vocabulary]
    logits.inputs.clear()
    build.add("Reshape", [products, build.constant([-1, 1, vocabulary])], outputs=[logits])
    tidy(decoder)
    saved = int(embedding.values.nbytes)
    return PassResult(NAME, 1, bytes_saved=lambda run: saved)


def _transposed_constant(graph: gs.Graph, weight: gs.Tensor) -> gs.Constant | None:
    """The constant [vocabulary, D] whose transpose ``weight`` [D, vocabulary] is."""
    if not isinstance(weight, gs.Constant):
        node = weight.inputs[0]
        return node.inputs[0] if node.op == "Transpose" and isinstance(node.inputs[0], gs.Constant) else None
    for node in graph.nodes:
        table = node.inputs[0] if node.op == "Gather" else None
        if isinstance(table, gs.Constant) and np.array_equal(table.values.T, weight.values):
            return table
    return None
