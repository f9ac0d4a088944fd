"""Canonical form of an encoder-decoder model: attention named after its kind and layer, self-attention without a mask.

    Attention(Q, past + new K, past + new V, mask)                       Attention(Q, K, V)         named self.<l>
    Attention(Q, K, V, Where(mask, distance bias, lowest))         ->    Attention(Q, K, V, bias)   named self.<l>
    Attention(Q, K, V of encoder_hidden_states, attention_mask)          the same                   named cross.<l>

A step's one query is the newest position and sees all others, so the mask of self-attention hides nothing. With
two-stream self-attention it stays, since it keeps the streams apart. Needs: one attention of each kind a layer. Saves
nothing: passes find their layers by name, whichever other layers have been rewritten.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import CROSS, SELF, attention_blocks, distance_table
from tightbeam.graph_passes.builder import split_last_axes, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassError, PassResult

NAME = "canonicalise_encoder_decoder"


def canonicalise_encoder_decoder(graphs: ModelGraphs) -> PassResult:
    """Name the decoder's Attention nodes ``cross.<l>`` and ``self.<l>``, and reduce masks, in place.

    Raises PassError unless each layer has one of each kind.
    """
    kinds: dict[str, list[gs.Node]] = {CROSS: [], SELF: []}
    inputs = {tensor.name for tensor in graphs.decoder.inputs}
    for block in attention_blocks(graphs.decoder, "trace"):
        if block.past is not None and all(past.name in inputs for past in block.past):
            kinds[SELF].append(block.node)
        elif block.past is None and block.key.source.name == block.value.source.name == "encoder_hidden_states":
            kinds[CROSS].append(block.node)
    expected = {CROSS: "cross-attentions over encoder_hidden_states", SELF: "self-attentions over a past"}
    for kind, nodes in kinds.items():
        if len(nodes) != graphs.sizes.L:
            raise PassError(f"trace: found {len(nodes)} {expected[kind]}, expected {graphs.sizes.L}, one a layer")
        for layer, node in enumerate(nodes):
            node.name = f"{kind}.{layer}"
            if kind == SELF and graphs.sizes.streams == 1:
                node.inputs = [*node.inputs[:3], *_bias_of_mask(node)]
    tidy(graphs.decoder)
    split_last_axes(graphs.decoder)
    return PassResult(NAME, 2 * graphs.sizes.L)


def _bias_of_mask(node: gs.Node) -> list[gs.Tensor]:
    """The distance bias inside an Attention's mask, Where(mask, bias, lowest), if there is one."""
    if len(node.inputs) < 4 or not node.inputs[3].inputs or node.inputs[3].inputs[0].op != "Where":
        return []
    bias = node.inputs[3].inputs[0].inputs[1]
    if distance_table(bias) is None:
        raise PassError(f"trace: {node.name} adds something else to its scores than a table over a distance")
    return [bias]
