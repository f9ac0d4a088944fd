"""Keep rows as matrices [R, width] between operators that take and give matrices.

    [R, W] - Reshape (S, W) - Reshape (-1, W) -> operator   ->   [R, W] -> operator
    [R, W] - Reshape (S, W) - Shape                         ->   S, W
    EncoderAttention(q, ...) - Shape                        ->   q - Shape
    equal Shapes, Concats and Reshapes of a tensor          ->   one of them

Exact. Needs: operators of ``plugins/`` that take matrices in a graph of tensors [B, N, W], as ``quantize`` leaves an
encoder. Saves the changes of layout around them; no bytes.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import give_instead, read_instead, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "flat_rows"
LAYOUT = frozenset({"Shape", "Concat", "Reshape"})
"""Operators that change a layout, or make its shape."""


def flat_rows(graphs: ModelGraphs) -> PassResult:
    """Remove changes of layout that others undo or repeat, in place."""
    matched = sum(_flatten(graph) for graph in (graphs.encoder, graphs.decoder))
    return PassResult(NAME, matched, "" if matched else "no change of layout is undone or repeated")


def _flatten(graph: gs.Graph) -> int:
    tidy(graph)
    before = len(graph.nodes)
    made: dict[object, gs.Tensor] = {}
    for node in [node for node in graph.nodes if node.op in LAYOUT and not node.domain]:
        if node.op == "Reshape":
            found = _matrix(node)
        elif node.op == "Shape":
            found = _shape(node)
        else:
            found = None
        found = found if found is not None else made.setdefault(_key(node), node.outputs[0])
        if found is node.outputs[0]:
            continue
        if not any(output is node.outputs[0] for output in graph.outputs):
            read_instead(node.outputs[0], found)
        elif node.op == "Reshape":
            give_instead(graph, found, node.outputs[0])
    tidy(graph)
    return before - len(graph.nodes)


def _matrix(reshape: gs.Node) -> gs.Tensor | None:
    """The matrix that a Reshape to rows restores. If there is none, it reads the tensor before other Reshapes."""
    shape = reshape.inputs[1]
    if not isinstance(shape, gs.Constant) or len(shape.values) != 2 or shape.values[0] != -1:
        return None
    first = reshape.inputs[0]
    while first.inputs and first.inputs[0].op == "Reshape" and not first.inputs[0].domain:
        first = first.inputs[0].inputs[0]
    if first.shape is not None and len(first.shape) == 2 and first.shape[1] == shape.values[1]:
        return first
    reshape.inputs[0] = first
    return None


def _shape(node: gs.Node) -> gs.Tensor | None:
    """The sizes that a Shape reads, or all but the last, if a Reshape was given them."""
    tensor = node.inputs[0]
    while tensor.inputs and tensor.inputs[0].op == "EncoderAttention":
        tensor = tensor.inputs[0].inputs[0]
    limits = node.attrs.get("start", 0), node.attrs.get("end")
    if limits == (0, -1):
        node.inputs[0] = tensor  # its sizes are the same but for the last
    elif limits != (0, None) or tensor is not node.inputs[0]:
        return None
    if not tensor.inputs or tensor.inputs[0].op != "Reshape":
        return None
    sizes = tensor.inputs[0].inputs[1]
    if not sizes.inputs or sizes.inputs[0].op != "Concat":
        return None
    leading, *last = sizes.inputs[0].inputs
    plain = len(last) == 1 and isinstance(last[0], gs.Constant) and len(last[0].values) == 1
    if not plain or not leading.inputs or leading.inputs[0].op != "Shape":  # else it may hold a 0 or a -1
        return None
    return leading if limits == (0, -1) else sizes


def _key(node: gs.Node) -> object:
    """A value that nodes of equal results share."""
    inputs = tuple(
        (tensor.values.dtype.str, tensor.values.shape, tensor.values.tobytes())
        if isinstance(tensor, gs.Constant) and tensor.values.size <= 8
        else id(tensor)
        for tensor in node.inputs
    )
    return node.op, tuple(sorted(node.attrs.items())), inputs
