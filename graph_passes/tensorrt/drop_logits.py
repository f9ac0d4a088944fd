"""Remove the decoder's output ``logits``, which no engine returns: a step gives the best C candidates alone.

    ... -> logits - BeamTopK -> candidates          both outputs    ->    candidates alone

Needs: nothing. Saves the memory of 4 R x vocabulary bytes that an engine would write in every step.
"""

from __future__ import annotations

from tightbeam.graph_passes.cleanup.search_head import LOGITS
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "drop_logits"


def drop_logits(graphs: ModelGraphs) -> PassResult:
    """Make ``logits`` a tensor inside the decoder, in place."""
    kept = [tensor for tensor in graphs.decoder.outputs if tensor.name != LOGITS]
    matched = len(graphs.decoder.outputs) - len(kept)
    graphs.decoder.outputs = kept
    return PassResult(NAME, matched, "" if matched else "the decoder has no such output")
