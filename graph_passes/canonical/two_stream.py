"""Canonical form of a decoder with two-stream self-attention (ProphetNet)."""

from __future__ import annotations

from tightbeam.graph_passes.builder import POSITIONS, Builder
from tightbeam.graph_passes.model import ModelGraphs, PassError


def canonicalise_two_stream(graphs: ModelGraphs) -> None:
    """Let ``step_rows`` know where streams begin and end: the Reshape that makes two rows of embeddings side by side,
    [R, 1, 2 D], and the Gather of every second row, [R, 1, D], that the logits are made of. Raises PassError where the
    one or the other is not there."""
    build = Builder(graphs.decoder, "streams")
    joined = [
        node
        for node in graphs.decoder.nodes
        if node.op == "Reshape" and node.inputs[0].inputs and node.inputs[0].inputs[0].op == "Concat"
        if node.inputs[0].inputs[0].attrs["axis"] == -1
    ]
    if len(joined) != 1:
        raise PassError(f"trace: found {len(joined)} places where streams become rows, expected 1")
    joined[0].name += f".{POSITIONS}"
    head = graphs.decoder.outputs[0].inputs[0]
    if head.op != "MatMul" or head.inputs[0].inputs[0].op != "Gather":
        raise PassError("trace: the logits are made of no stream")
    head.inputs[0] = build.positions(head.inputs[0], graphs.sizes.D)
