"""Run the decoder step on matrices [R, width] in place of [R, 1, width]: a step has one position.

    tokens [R, 1] - Gather -> [R, 1, D]                        tokens - Reshape [R] - Gather -> [R, D]
    [R, 1, D] - Reshape [R, D] - operator - Reshape      ->    [R, D] - operator
    [R, 1, D] - MatMul W - Add b                               [R, D] - MatMul W - Add b, one Gemm to a runtime

Needs: a decoder whose attentions are all operators of ``plugins/``, which take rows. Saves the changes of layout around
them; no bytes.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import POSITIONS, ROWS, Builder, give_instead, read_instead, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassResult
from tightbeam.plugins.ops import DOMAIN

NAME = "step_rows"

ROW_BY_ROW = frozenset({"Add", "Mul", "MatMul", "Gemm", "LayerNormalization", "RMSNormalization", "Gelu"})
"""Standard operators whose outputs are rows if their inputs are."""

LOOKED_UP = frozenset({"Gather", "Add", "Equal"})
"""Operators that read tokens, and positions that index a table."""


def step_rows(graphs: ModelGraphs) -> PassResult:
    """Make the decoder read ``tokens`` and ``positions`` as [R], and remove Reshapes of single positions, in place."""
    decoder = graphs.decoder
    if any(node.op == "Attention" for node in decoder.nodes):
        return PassResult(NAME, 0, "an attention of the decoder is no operator of ours")
    build = Builder(decoder, NAME)
    for tensor in [tensor for tensor in decoder.inputs if tensor.name in ("tokens", "positions")]:
        if any(reader.op not in LOOKED_UP for reader in tensor.outputs):
            continue  # angles of rotary positions, which stay [R, 1, X]
        flat = build.variable(tensor.name, ["R"], np.int64)
        read_instead(tensor, flat)
        build.add("Reshape", [tensor, build.constant([-1])], outputs=[flat])
        readers = [after for reader in flat.outputs for after in reader.outputs[0].outputs]
        for node in [node for node in readers if node.op == "Unsqueeze"]:  # rows that are chosen by their token
            node.inputs[1] = build.constant([-1])
    matched = 0
    made = (f".{ROWS}", f".{POSITIONS}")
    for node in [node for node in decoder.nodes if node.op == "Reshape" and node.name.endswith(made)]:
        matched += 1
        _read_matrix(node)
        producer = node.inputs[0].inputs[0]
        if producer.op in ROW_BY_ROW or producer.domain == DOMAIN:
            _skip(decoder, node)
        else:
            node.inputs[1] = build.constant([-1, node.inputs[1].values[-1]])
    tidy(decoder)
    return PassResult(NAME, matched)


def _read_matrix(node: gs.Node) -> None:
    """Let a Reshape to rows read the matrix that a Gemm gives, past the Reshape between them that adds a position.

    This is the head of tied embeddings; both Reshapes would copy the logits, which are an output.
    """
    before = node.inputs[0].inputs[0]
    gemm = before.inputs[0].inputs[0] if before.op == "Reshape" and before.inputs[0].inputs else None
    if gemm is not None and gemm.op == "Gemm":
        weight = gemm.inputs[1].shape
        if weight[0 if gemm.attrs.get("transB", 0) else 1] == node.inputs[1].values[-1]:
            node.inputs[0] = before.inputs[0]


def _skip(decoder: gs.Graph, node: gs.Node) -> None:
    """Remove a Reshape that changes nothing: its readers read its input, or its input is given as its output."""
    before, after = node.inputs[0], node.outputs[0]
    if any(after is output for output in decoder.outputs):
        give_instead(decoder, before, after)
    else:
        read_instead(after, before)
