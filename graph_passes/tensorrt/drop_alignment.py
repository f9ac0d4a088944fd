"""Remove the outputs ``alignment_queries`` and ``alignment_keys``: an engine gives no times of tokens.

    S - MatMul - Reshape - Transpose -> alignment_keys        ->    removed
    Q - Reshape - Concat - Gather -> alignment_queries        ->    removed

Needs: nothing. Saves one product of the encoder, and the memory of both outputs.
"""

from __future__ import annotations

from tightbeam.graph_passes.builder import tidy
from tightbeam.graph_passes.cleanup.alignment_outputs import KEYS, QUERIES
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "drop_alignment"


def drop_alignment(graphs: ModelGraphs) -> PassResult:
    """Remove both outputs and what only they read, in place."""
    matched = 0
    for graph in (graphs.encoder, graphs.decoder):
        kept = [tensor for tensor in graph.outputs if tensor.name not in (QUERIES, KEYS)]
        matched += len(graph.outputs) - len(kept)
        graph.outputs = kept
        tidy(graph)
    return PassResult(NAME, matched, "" if matched else "the graphs have no such outputs")
