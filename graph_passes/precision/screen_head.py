"""Compute the logits of greedy steps from few products first, and all of a logit only where it may be the best.

    x - Linear(W in tiles, b, 0)                                          -> logits - BeamTopK(., history, ...)
    ->  x - ScreenedLinear(the same, W in integers, history, ..., all_logits) -> logits - BeamTopK(., history, ...)

    x - DynamicQuantizeMatMul(W uint8, s, b, 0)                           -> logits - BeamTopK(., history, ...)
    ->  x - ScreenedQuantizedMatMul(the same, T, T'W, history, ..., all_logits) -> logits - BeamTopK(., history, ...)

Exact: the candidates are those of all logits, bit for bit. The decoder has an input more, ``all_logits``, which is true
for a search that reads whole rows of logits. Needs: a head in float32 after ``linear``, of a width that 4 divides, or
one in int8 and the directions T. Bytes: a quarter of the head's in float32, and K / X of it in int8 with K directions.
Operators: ``plugins/ops/screened_linear`` and ``screened_quantized_matmul``, whose ``layout.py`` derive the bounds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder, graph_input, tidy
from tightbeam.graph_passes.model import Array, ModelGraphs, PassError, PassResult
from tightbeam.graph_passes.precision.integers import MOST
from tightbeam.graph_passes.precision.sites import Site, sites_of
from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.ops.linear.layout import untiled
from tightbeam.plugins.ops.quantized_matmul import GROUP
from tightbeam.plugins.ops.quantized_matmul.layout import untiled as untiled_integers
from tightbeam.plugins.ops.screened_linear.layout import screen_of
from tightbeam.plugins.ops.screened_quantized_matmul.layout import screen_of as screen_along

__all__ = ["ALL_LOGITS", "INTEGER_HEADS", "head_site", "problem_of_integers", "screen_head"]

NAME = "screen_head"
ALL_LOGITS = "all_logits"
INTEGER_HEADS = ("DynamicQuantizeMatMul", "SplitRowsMatMul")
LARGEST = 1e15
"""Weights up to here, so that no sum of the operator becomes infinite."""


def screen_head(graphs: ModelGraphs, directions: Array | None = None) -> PassResult:
    """Replace the product before BeamTopK in the decoder, in place.

    Parameters
    ----------
    graphs
        Graphs in float32 or int8.
    directions
        Orthonormal columns float32 [X, K], for a head in int8.

    Raises
    ------
    PassError
        The head cannot be screened.
    """
    decoder = graphs.decoder
    search = next(node for node in decoder.nodes if node.op == "BeamTopK")
    logits = search.inputs[0]
    node = logits.inputs[0]
    attributes = {}
    if directions is None or node.op not in INTEGER_HEADS:
        name, made = "ScreenedLinear", _inputs(node)
    else:
        name, made = "ScreenedQuantizedMatMul", _inputs_of_integers(node, directions)
        attributes = {"split": 1} if node.op == "SplitRowsMatMul" else {}
    given = dict(zip(OPERATORS["BeamTopK"].input_names, search.inputs, strict=False))
    given |= {**made, ALL_LOGITS: graph_input(decoder, ALL_LOGITS, np.bool_, ())}
    node.outputs.clear()
    Builder(decoder, NAME).operator(name, [given[entry] for entry in OPERATORS[name].input_names], attributes, [logits])
    tidy(decoder)
    return PassResult(NAME, 1)


def head_site(graphs: ModelGraphs) -> Site:
    """The product of the logits in a variant's graphs in float32. PassError: more than a bias follows it."""
    search = next(node for node in graphs.decoder.nodes if node.op == "BeamTopK")
    node, bias = search.inputs[0].inputs[0], None
    if node.op == "Add" and (bias := next((each for each in node.inputs if isinstance(each, gs.Constant)), None)):
        node = next(each for each in node.inputs if each is not bias).inputs[0]
    site = next((site for site in sites_of(graphs.decoder, "decoder", graphs.sizes) if site.node is node), None)
    if site is None or site.rows is None or site.addend is not None:
        raise PassError(
            f"{NAME}: the logits are the result of {node.op}, expected a product with a constant matrix; "
            "export without --screen-logits"
        )
    return site if bias is None else replace(site, bias=bias)


def _inputs(node: gs.Node) -> dict[str, gs.Tensor]:
    """The inputs of ScreenedLinear that BeamTopK does not have."""
    _refuse(_problem(node))
    rows, tiles, bias, _ = node.inputs
    screen = screen_of(untiled(tiles.values, len(bias.values)))
    made = {"integers": screen.integers, "scale": screen.scale, "error": screen.error}
    return {"rows": rows, "weights": tiles, "bias": bias, **_constants(tiles, made)}


def _inputs_of_integers(node: gs.Node, directions: Array) -> dict[str, gs.Tensor]:
    """The inputs of ScreenedQuantizedMatMul that BeamTopK does not have."""
    _refuse(problem_of_integers(node))
    rows, tiles, scale, bias, _ = node.inputs
    weights = untiled_integers(tiles.values, len(bias.values), np.int8)
    screen = screen_along(directions, weights, scale.values[0], bias.values)
    made = {name: getattr(screen, name) for name in ("directions", "integers", "integer_scale", "error")}
    return {"rows": rows, "weights": tiles, "scale": scale, "bias": bias, **_constants(tiles, made)}


def _constants(tiles: gs.Constant, made: dict[str, Array]) -> dict[str, gs.Tensor]:
    return {name: gs.Constant(f"{tiles.name}.{name}", values) for name, values in made.items()}


def _refuse(problem: str) -> None:
    if problem:
        raise PassError(f"{NAME}: {problem}; export without --screen-logits")


def _problem(node: gs.Node) -> str:
    """The clause that says why a product cannot be screened; empty if it can."""
    if node.op != "Linear":
        return f"the logits are the result of {node.op}, expected a product with a matrix in float32 or int8"
    _, tiles, bias, addend = node.inputs
    width = int(tiles.shape[1])
    if width % GROUP:
        return f"the head has rows of {width} numbers, expected a multiple of {GROUP}"
    return _problem_of_values(addend, np.abs(tiles.values).max(), bias)


def problem_of_integers(node: gs.Node) -> str:
    """The clause that says why logits in int8 cannot be had from another operator; empty if they can."""
    _, _, scale, bias, addend = node.inputs
    if node.attrs.get("activation", 0):
        return "the logits have an activation"
    if len(scale.values) != 1:
        return "the head has several scales in a column"
    return _problem_of_values(addend, scale.values.max() * MOST, bias)


def _problem_of_values(addend: gs.Tensor, largest: float, bias: gs.Constant) -> str:
    if not isinstance(addend, gs.Constant) or addend.values.size != 1 or np.any(addend.values):
        return "a tensor is added to the logits"
    if not largest <= LARGEST or not (bias.values <= LARGEST).all():
        return f"the head has weights or biases above {LARGEST:g}, or NaN"
    return ""
