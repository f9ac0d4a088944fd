"""Leave source positions out that hardly count (Slim attention, section 3).

A weight of the softmax below a threshold counts as 0, so that a position of which no query takes more is not read for
its value; the softmax itself stays over all positions, and one query loses less than N times the threshold of its
weight. Not exact: no variant has it by itself. Needs: SourceAttention or LatentAttention in the decoder.
"""

from __future__ import annotations

from tightbeam.graph_passes.model import ModelGraphs, PassError, PassResult

NAME = "skip_small_weights"
OPERATORS = ("SourceAttention", "LatentAttention")


def skip_small_weights(graphs: ModelGraphs, threshold: float) -> PassResult:
    """Give every attention over the source the attribute ``weight_threshold``, 0 < ``threshold`` < 1."""
    nodes = [node for node in graphs.decoder.nodes if node.op in OPERATORS]
    if not nodes:
        raise PassError(
            f"{NAME}: no layer attends to its source with an operator of ours; keep the source as something else than "
            "kv-per-beam, which needs none"
        )
    for node in nodes:
        node.attrs["weight_threshold"] = threshold
    return PassResult(NAME, len(nodes))
