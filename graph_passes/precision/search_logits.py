"""Let one operator compute logits in int8 and search them, so that a step writes none of them.

    x - DynamicQuantizeMatMul(W uint8, s, b, 0) -> logits - BeamTopK(., scores, history, ...) -> candidates
    ->  x - QuantizedBeamTopK(W, s, b, scores, history, ..., all_logits) -> candidates, logits

Exact: the candidates are the same, bit for bit. The decoder has an input more, ``all_logits``, which is true for a
search that reads whole rows of logits. A head that is not in 8 bits, or after which more follows than a bias, stays as
it is.
Operator: ``plugins/ops/quantized_beam_top_k``.
"""

from __future__ import annotations

import numpy as np

from tightbeam.graph_passes.builder import Builder, graph_input, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassResult
from tightbeam.graph_passes.precision.screen_head import ALL_LOGITS, INTEGER_HEADS, problem_of_integers
from tightbeam.plugins.ops import OPERATORS

__all__ = ["search_logits"]

NAME = "search_logits"


def search_logits(graphs: ModelGraphs) -> PassResult:
    """Replace the product before BeamTopK and BeamTopK itself in the decoder, in place."""
    decoder = graphs.decoder
    search = next((node for node in decoder.nodes if node.op == "BeamTopK"), None)
    if search is None:
        return PassResult(NAME, 0, "the decoder has no BeamTopK")
    logits = search.inputs[0]
    product = logits.inputs[0]
    if product.op not in INTEGER_HEADS:
        return PassResult(NAME, 0, f"the logits are the result of {product.op}")
    if problem := problem_of_integers(product):
        return PassResult(NAME, 0, problem)
    if len(logits.outputs) > 1:
        return PassResult(NAME, 0, "another node reads the logits")
    given = dict(zip(OPERATORS["BeamTopK"].input_names, search.inputs, strict=False))
    given |= dict(zip(("rows", "weights", "scale", "bias"), product.inputs, strict=False))
    given |= {ALL_LOGITS: graph_input(decoder, ALL_LOGITS, np.bool_, ())}
    results = [*search.outputs, logits]
    product.outputs.clear()
    search.outputs.clear()
    attributes = {"split": 1} if product.op == "SplitRowsMatMul" else {}
    names = OPERATORS["QuantizedBeamTopK"].input_names
    Builder(decoder, NAME).operator("QuantizedBeamTopK", [given[name] for name in names], attributes, results)
    tidy(decoder)
    return PassResult(NAME, 1)
