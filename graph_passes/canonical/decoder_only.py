"""Canonical form of one softmax over source and output: attention by layer, each projection a product of its own.

    x - MatMul [W_Q W_K W_V] - Add b - Split - Q          x - MatMul W_Q - Add b_Q - Q
                                             - K    ->    x - MatMul W_K - Add b_K - K - Attention prompt.<l>, self.<l>
                                             - V          x - MatMul W_V - Add b_V - V

Needs: one Attention node for each layer, in the decoder, and in the prompt graph of a decoder-only model. Saves
nothing: the passes of caches find each projection behind its attention.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import NORM, PROMPT, ROTATION, SELF, behind_attention, past_concat
from tightbeam.graph_passes.builder import Builder, read_instead, split_last_axes, tidy
from tightbeam.graph_passes.canonical.fold_scales import fold_scale
from tightbeam.graph_passes.model import ModelGraphs, PassError, PassResult

NAME = "canonicalise_decoder_only"
PREFIX = "trace"
"""First part of the names of new nodes: a canonical graph counts as traced."""
LAST_AXIS = (2, 3, -1)
"""Last axis of projections [B, N, columns] or [B, 1, N, columns]."""


def canonicalise_decoder_only(graphs: ModelGraphs) -> PassResult:
    """Name the Attention nodes ``prompt.<l>`` and ``self.<l>``, and split their projections, in place.

    Raises PassError unless each graph has one attention a layer.
    """
    parts = ((graphs.encoder, PROMPT), (graphs.decoder, SELF))
    for graph, kind in parts[1:] if graphs.sizes.merged else parts:
        _drop_views(graph, graphs.sizes.D)
        _rotate_whole_heads(graph)
        _normalise_first(graph)
        nodes = [node for node in graph.nodes if node.op == "Attention"]
        if len(nodes) != graphs.sizes.L:
            raise PassError(f"{PREFIX}: found {len(nodes)} self-attentions, expected {graphs.sizes.L}, one a layer")
        build = Builder(graph, PREFIX)
        for layer, node in enumerate(nodes):
            node.name = f"{kind}.{layer}"
            fold_scale(node)
            for index in range(3):
                concat = past_concat(node.inputs[index])
                _split(build, node.inputs[index] if concat is None else concat.inputs[1])
        tidy(graph)
        split_last_axes(graph)
    return PassResult(NAME, 2 * graphs.sizes.L)


def _split(build: Builder, tensor: gs.Tensor) -> None:
    """Give the projection behind an attention's input a product of its own, if a Split or Slice cuts it out of one."""
    part, _ = behind_attention(tensor)
    columns = _columns(part)
    if columns is None:
        return
    whole = part.inputs[0].inputs[0]
    bias, axes = None, None
    if whole.inputs and whole.inputs[0].op == "Unsqueeze" and whole.inputs[0].inputs[1].values.size == 1:  # one head
        whole, axes = whole.inputs[0].inputs
    if whole.inputs and whole.inputs[0].op == "Add":
        bias = next((operand for operand in whole.inputs[0].inputs if isinstance(operand, gs.Constant)), None)
        whole = next(operand for operand in whole.inputs[0].inputs if operand is not bias)
    if not whole.inputs or whole.inputs[0].op != "MatMul" or not isinstance(whole.inputs[0].inputs[1], gs.Constant):
        return
    source, weight = whole.inputs[0].inputs
    alone = build.add("MatMul", [source, build.constant(weight.values[:, columns], weight.dtype)])
    if bias is not None:
        alone = build.add("Add", [alone, build.constant(bias.values.reshape(-1)[columns], bias.dtype)])
    if axes is not None:
        # A Reshape, unlike an Unsqueeze, also takes the rows without positions that ``step_rows`` makes.
        shape = [0, -1, alone.inputs[0].inputs[1].values.shape[-1]]
        shape.insert(axes.values.item() % 4, 1)
        alone = build.reshape(alone, shape)
    whole_node = part.inputs[0]
    whole_node.outputs = [gs.Variable(f"{made.name}.unread") if made is part else made for made in whole_node.outputs]
    alone.inputs[0].outputs = [part]  # which may be an output of the graph


def _rotate_whole_heads(graph: gs.Graph) -> None:
    """Rotate the first numbers of whole heads, if a part of each head is taken out, rotated and put back.

    Concat(RotaryEmbedding(x[..., :X]), x[..., X:]) -> RotaryEmbedding(x), of the first X numbers
    """
    for joined in [node for node in graph.nodes if node.op == "Concat" and len(node.inputs) == 2]:
        rotated, passed = (tensor.inputs[0] if tensor.inputs else None for tensor in joined.inputs)
        if rotated is None or passed is None or rotated.op != ROTATION or passed.op != "Slice":
            continue
        taken = rotated.inputs[0].inputs[0] if rotated.inputs[0].inputs else None
        if taken is None or taken.op != "Slice" or taken.inputs[0] is not passed.inputs[0]:
            continue
        first, rest = _columns(taken.outputs[0]), _columns(passed.outputs[0])
        if first is None or rest is None or first.start != 0 or first.stop != rest.start:
            continue
        rotated.inputs[0] = taken.inputs[0]
        rotated.attrs["rotary_embedding_dim"] = int(first.stop)
        whole = joined.outputs[0]
        joined.outputs = []
        rotated.outputs = [whole]  # which may be an output of the graph


def _normalise_first(graph: gs.Graph) -> None:
    """Move the norm of each head's numbers before the Transpose of heads and positions; the numbers are the same."""
    for norm in [node for node in graph.nodes if node.op == NORM]:
        transpose = norm.inputs[0].inputs[0] if norm.inputs[0].inputs else None
        if transpose is None or transpose.op != "Transpose" or transpose.attrs["perm"] != [0, 2, 1, 3]:
            continue
        if len(transpose.outputs[0].outputs) > 1:
            continue
        after, before, between = norm.outputs[0], transpose.inputs[0], transpose.outputs[0]
        transpose.inputs, norm.inputs[0] = [between], before
        transpose.outputs, norm.outputs = [after], [between]
        between.shape = before.shape


def _columns(part: gs.Tensor) -> slice | None:
    """Columns that a Split or Slice over the last axis takes from its input [..., columns]; None for any other node."""
    node = part.inputs[0] if part.inputs else None
    if node is None or node.op not in ("Split", "Slice"):
        return None
    if node.op == "Slice":
        starts, ends, axes = (tensor.values.reshape(-1) for tensor in node.inputs[1:4])
        if len(axes) != 1 or axes[0] not in LAST_AXIS:
            return None
        return slice(int(starts[0]), int(min(ends[0], np.iinfo(np.int64).max)))
    if node.attrs.get("axis", 0) not in LAST_AXIS:
        return None
    index = node.outputs.index(part)
    if len(node.inputs) > 1:
        sizes = [int(size) for size in node.inputs[1].values]
    else:
        whole = node.inputs[0].inputs[0].inputs
        width = next(operand for operand in whole if isinstance(operand, gs.Constant)).values.shape[-1]
        sizes = [width // len(node.outputs)] * len(node.outputs)
    return slice(sum(sizes[:index]), sum(sizes[: index + 1]))


def _drop_views(graph: gs.Graph, D: int) -> None:
    """Remove Reshapes that leave the shape of tokens, or of a normalisation's output, as it is."""
    inputs = {tensor.name for tensor in graph.inputs}
    for node in [node for node in graph.nodes if node.op == "Reshape"]:
        made = node.inputs[0]
        normalised = made.inputs and made.inputs[0].op in ("LayerNormalization", "RMSNormalization")
        if node.outputs[0] in graph.outputs:
            continue
        if made.name in inputs or (normalised and all(reader.op == "MatMul" for reader in node.outputs[0].outputs)):
            read_instead(node.outputs[0], made)
