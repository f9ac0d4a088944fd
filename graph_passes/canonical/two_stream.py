"""Canonical form of a decoder with two-stream self-attention (ProphetNet): marks for ``step_rows``.

    Concat - Reshape - rows [2 R, 1, D]               Concat - Reshape <name>.positions - rows
    Gather of every second row - MatMul -> logits     Gather - Reshape [R, 1, D] streams.<name>.positions - MatMul

Needs: a Reshape that makes two rows of embeddings side by side [R, 1, 2 D], and logits of every second row. Saves
nothing: ``step_rows`` finds by these names where the streams begin and end.
"""

from __future__ import annotations

from tightbeam.graph_passes.builder import POSITIONS, Builder
from tightbeam.graph_passes.model import ModelGraphs, PassError, PassResult

NAME = "canonicalise_two_stream"


def canonicalise_two_stream(graphs: ModelGraphs) -> PassResult:
    """Mark both ends of the two streams in the decoder, in place. Raises PassError if either end is not found."""
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
        raise PassError("trace: the logits are not a product of one stream's rows")
    head.inputs[0] = build.positions(head.inputs[0], graphs.sizes.D)
    return PassResult(NAME, 2)
