"""Skip source positions whose attention weight is below a threshold (Slim attention, section 3).

    SourceAttention(scale), LatentAttention(scale)    ->    the same with weight_threshold

A softmax weight below the threshold counts as 0, so a position below it for all queries is not read for its value. The
softmax itself is still over all positions, and a query loses less than N times the threshold of its weight. Not exact,
so an export does it on request alone. Needs: SourceAttention or LatentAttention in the decoder. Saves reads, no bytes
of cache.
"""

from __future__ import annotations

from tightbeam.graph_passes.model import ModelGraphs, PassError, PassResult

NAME = "skip_small_weights"
OPERATORS = ("SourceAttention", "LatentAttention")


def skip_small_weights(graphs: ModelGraphs, threshold: float) -> PassResult:
    """Give every operator over the source the attribute ``weight_threshold``, 0 < ``threshold`` < 1, in place.

    Raises PassError if the source cache is ``kv-per-beam`` in all layers.
    """
    nodes = [node for node in graphs.decoder.nodes if node.op in OPERATORS]
    if not nodes:
        raise PassError(
            f"{NAME}: no layer reads its source cache with an operator of plugins/; choose another source cache than "
            "kv-per-beam"
        )
    for node in nodes:
        node.attrs["weight_threshold"] = threshold
    return PassResult(NAME, len(nodes))
