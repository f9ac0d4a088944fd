"""Compute the logits of greedy steps from integers first, and in float32 only where they may be the best.

    x - Linear(W in tiles, b, 0)                                          -> logits - BeamTopK(., history, ...)
    ->  x - ScreenedLinear(the same, W in integers, history, ..., all_logits) -> logits - BeamTopK(., history, ...)

Exact: the candidates are those of all logits, bit for bit. The decoder has an input more, ``all_logits``, which is true
for a search that reads whole rows of logits. Needs: a head of float32 after ``linear``, of a width that 4 divides.
Bytes: a quarter of the head's more. Operator: ``plugins/ops/screened_linear``, whose bound ``layout.py`` derives.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder, graph_input, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassError, PassResult
from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.ops.linear.layout import untiled
from tightbeam.plugins.ops.quantized_matmul import GROUP
from tightbeam.plugins.ops.screened_linear.layout import screen_of

__all__ = ["ALL_LOGITS", "screen_head"]

NAME = "screen_head"
ALL_LOGITS = "all_logits"
LARGEST = 1e15
"""Weights up to here, so that no sum of the operator becomes infinite."""


def screen_head(graphs: ModelGraphs) -> PassResult:
    """Replace the product before BeamTopK in the decoder, in place. Raises PassError for a head that it cannot be."""
    decoder = graphs.decoder
    search = next(node for node in decoder.nodes if node.op == "BeamTopK")
    logits = search.inputs[0]
    node = logits.inputs[0]
    problem = _problem(node)
    if problem:
        raise PassError(f"{NAME}: {problem}; export without --screen-logits")
    rows, tiles, bias, _ = node.inputs
    screen = screen_of(untiled(tiles.values, len(bias.values)))
    build = Builder(decoder, NAME)
    given = dict(zip(OPERATORS["BeamTopK"].input_names, search.inputs, strict=False))
    given |= {"rows": rows, "weights": tiles, "bias": bias}
    given |= {
        name: gs.Constant(f"{tiles.name}.{name}", values)
        for name, values in (("integers", screen.integers), ("scale", screen.scale), ("error", screen.error))
    }
    given[ALL_LOGITS] = graph_input(decoder, ALL_LOGITS, np.bool_, ())
    node.outputs.clear()
    build.operator("ScreenedLinear", [given[name] for name in OPERATORS["ScreenedLinear"].input_names], {}, [logits])
    tidy(decoder)
    return PassResult(NAME, 1)


def _problem(node: gs.Node) -> str:
    """The clause that says why a product cannot be screened; empty if it can."""
    if node.op != "Linear":
        return f"the logits are the result of {node.op}, expected a product with a matrix in float32"
    _, tiles, bias, addend = node.inputs
    if not isinstance(addend, gs.Constant) or addend.values.size != 1 or np.any(addend.values):
        return "a tensor is added to the logits"
    width = int(tiles.shape[1])
    if width % GROUP:
        return f"the head has rows of {width} numbers, expected a multiple of {GROUP}"
    if not np.abs(tiles.values).max() <= LARGEST or not (bias.values <= LARGEST).all():
        return f"the head has weights or biases above {LARGEST:g}, or NaN"
    return ""
