"""The canonical form of a decoder-only model's attention: named after its layer, with a product of its own for each of
queries, keys and values, where the model takes them out of one."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import PROMPT, SELF, behind_attention, past_concat
from tightbeam.graph_passes.builder import Builder, read_instead, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassError

NAME = "trace"
LAST_AXIS = (2, 3, -1)
"""Of projections [B, N, columns], or [B, 1, N, columns]."""


def canonicalise_decoder_only(graphs: ModelGraphs) -> None:
    """Name the Attention nodes of the prompt graph ``prompt.<l>`` and of the decoder ``self.<l>``, and split their
    projections. Raises PassError unless each layer has one of each."""
    for graph, kind in ((graphs.encoder, PROMPT), (graphs.decoder, SELF)):
        _drop_views(graph, graphs.sizes.D)
        nodes = [node for node in graph.nodes if node.op == "Attention"]
        if len(nodes) != graphs.sizes.L:
            raise PassError(f"{NAME}: found {len(nodes)} self-attentions, expected {graphs.sizes.L}, one a layer")
        build = Builder(graph, NAME)
        for layer, node in enumerate(nodes):
            node.name = f"{kind}.{layer}"
            for index in range(3):
                concat = past_concat(node.inputs[index])
                _split(build, node.inputs[index] if concat is None else concat.inputs[1])
        tidy(graph)
        for node in graph.nodes:
            if node.op == "Split" and node.attrs.get("axis") == 2:  # of [., ., columns], in a feed-forward part
                node.attrs["axis"] = -1  # which holds where a step's rows are matrices too


def _split(build: Builder, tensor: gs.Tensor) -> None:
    """Give the projection behind an attention's input a product of its own, where it is a part of one."""
    part, _ = behind_attention(tensor)
    columns = _columns(part)
    if columns is None:
        return
    whole = part.inputs[0].inputs[0]
    bias, axes = None, None
    if whole.inputs and whole.inputs[0].op == "Unsqueeze":
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
        alone = build.add("Unsqueeze", [alone, axes])
    whole_node = part.inputs[0]
    whole_node.outputs = [gs.Variable(f"{made.name}.unread") if made is part else made for made in whole_node.outputs]
    alone.inputs[0].outputs = [part]  # which may be an output of the graph


def _columns(part: gs.Tensor) -> slice | None:
    """Which columns of its input [..., columns] a Split or Slice over the last axis gives; None for anything else."""
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
    """Take out Reshapes that give tokens, or what comes from a normalisation, the shape that they have."""
    inputs = {tensor.name for tensor in graph.inputs}
    for node in [node for node in graph.nodes if node.op == "Reshape"]:
        made = node.inputs[0]
        normalised = made.inputs and made.inputs[0].op in ("LayerNormalization", "RMSNormalization")
        if node.outputs[0] in graph.outputs:
            continue
        if made.name in inputs or (normalised and all(reader.op == "MatMul" for reader in node.outputs[0].outputs)):
            read_instead(node.outputs[0], made)
