"""Attention in a graph: an ``Attention`` node with the projections around it, found by kind and layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_graphsurgeon as gs

from tightbeam.graph_passes.model import ModelGraphs, PassError, Sizes

LAYOUT_OPS = ("Reshape", "Transpose", "Unsqueeze")


BETWEEN_OPS = ("RotaryEmbedding", "RMSNormalization", "LayerNormalization")
"""What a model may do to queries and keys after their projection."""


CROSS, SELF, PROMPT = "cross", "self", "prompt"


@dataclass(frozen=True)
class Projection:
    """source x weight (+ bias) -> output, as MatMul and Add; ``output`` is what the rest of the graph reads.

    ``between``: the operators, beside changes of layout, that stand between ``output`` and the attention."""

    source: gs.Tensor
    weight: gs.Constant
    bias: gs.Constant | None
    output: gs.Tensor
    matmul: gs.Node
    between: tuple[str, ...] = ()


@dataclass(frozen=True)
class AttentionBlock:
    """One Attention node with its four projections. ``past`` holds the past key and value of self-attention, ``new``
    the new token's, as they follow the past, ``distance_bias`` [Y, H] what its scores get by the distance from the
    query back to a key."""

    node: gs.Node
    query: Projection
    key: Projection
    value: Projection
    output: Projection
    past: tuple[gs.Tensor, gs.Tensor] | None
    new: tuple[gs.Tensor, gs.Tensor] | None
    distance_bias: gs.Constant | None

    @property
    def scale(self) -> float:
        return float(self.node.attrs["scale"])

    @property
    def between(self) -> tuple[str, ...]:
        """What stands between the projections of query and key and their scores."""
        return self.query.between + self.key.between


def attention_blocks(graph: gs.Graph, pass_name: str) -> list[AttentionBlock]:
    """The Attention nodes that project their own keys, in order of execution (a pass may have made others, which read a
    cache as it is). Raises PassError at the first one not understood."""
    nodes = [node for node in graph.nodes if node.op == "Attention" and node.inputs[1].inputs]
    return [_attention_block(node, pass_name) for node in nodes]


def cross_attention(
    graphs: ModelGraphs, pass_name: str, layers: Sequence[int] | None = None
) -> dict[int, AttentionBlock]:
    """The cross-attention of each of the decoder's ``layers``, all by default: keys and values projected from
    ``encoder_hidden_states``. Raises PassError for a layer that has none left."""
    if graphs.sizes.decoder_only:
        raise PassError(f"{pass_name}: a decoder-only model has no cross-attention; its source is the prompt")
    return _named_blocks(graphs.decoder, graphs.sizes, pass_name, CROSS, layers)


def self_attention(
    graphs: ModelGraphs, pass_name: str, layers: Sequence[int] | None = None
) -> dict[int, AttentionBlock]:
    """The self-attention of each of the decoder's ``layers``, all by default: a past that is a graph input, followed by
    the new token. Raises PassError for a layer that has none left."""
    return _named_blocks(graphs.decoder, graphs.sizes, pass_name, SELF, layers)


def prompt_attention(
    graphs: ModelGraphs, pass_name: str, layers: Sequence[int] | None = None
) -> dict[int, AttentionBlock]:
    """The causal self-attention of a decoder-only model's ``layers`` over the prompt, all by default: in the encoder
    graph."""
    return _named_blocks(graphs.encoder, graphs.sizes, pass_name, PROMPT, layers)


def _named_blocks(
    graph: gs.Graph, sizes: Sizes, pass_name: str, kind: str, layers: Sequence[int] | None
) -> dict[int, AttentionBlock]:
    nodes = {node.name: node for node in graph.nodes if node.op == "Attention"}
    found = {}
    for layer in range(sizes.L) if layers is None else layers:
        node = nodes.get(f"{kind}.{layer}")
        if node is None:
            raise PassError(f"{pass_name}: layer {layer} has no {kind}-attention that is as it was traced")
        found[layer] = _attention_block(node, pass_name)
    return found


def _attention_block(node: gs.Node, pass_name: str) -> AttentionBlock:
    where = node.name or node.outputs[0].name
    causal = node.attrs.get("is_causal", 0) and not where.startswith(PROMPT)
    if "scale" not in node.attrs or node.attrs.get("softcap", 0) or causal:
        raise PassError(f"{pass_name}: {where} needs a scale, no softcap and no causal mask, it has {dict(node.attrs)}")

    def projection(tensor: gs.Tensor, role: str) -> Projection:
        found = projection_behind(tensor)
        if found is None:
            raise PassError(f"{pass_name}: the {role} of {where} is no MatMul by a weight")
        return found

    query, key, value = node.inputs[:3]
    past, new = None, None
    concats = [past_concat(tensor) for tensor in (key, value)]
    if concats[0] is not None and concats[1] is not None:
        past = (concats[0].inputs[0], concats[1].inputs[0])
        new = key, value = concats[0].inputs[1], concats[1].inputs[1]
    output = _projection_ahead(node.outputs[0])
    if output is None:
        raise PassError(f"{pass_name}: the output of {where} meets no MatMul by a weight")
    bias = distance_table(node.inputs[3]) if past is not None and len(node.inputs) > 3 else None
    return AttentionBlock(
        node, projection(query, "query"), projection(key, "key"), projection(value, "value"), output, past, new, bias
    )


def past_concat(tensor: gs.Tensor) -> gs.Node | None:
    """The Concat that puts the new token's keys or values behind the past, in what an attention reads; a prompt may
    stand in front."""
    node = tensor.inputs[0] if tensor.inputs else None
    if node is None or node.op != "Concat":
        return None
    last = node.inputs[1]
    return last.inputs[0] if last.inputs and last.inputs[0].op == "Concat" else node


def projection_behind(tensor: gs.Tensor) -> Projection | None:
    """Walk up through layout changes and ``BETWEEN_OPS`` to ``source x weight (+ bias)``."""
    tensor, between = behind_attention(tensor)
    output, bias = tensor, None
    if tensor.inputs and tensor.inputs[0].op == "Add":
        constant = [operand for operand in tensor.inputs[0].inputs if isinstance(operand, gs.Constant)]
        if len(constant) != 1:
            return None
        bias = constant[0]
        tensor = next(operand for operand in tensor.inputs[0].inputs if operand is not bias)
    if not tensor.inputs or tensor.inputs[0].op != "MatMul" or not isinstance(tensor.inputs[0].inputs[1], gs.Constant):
        return None
    matmul = tensor.inputs[0]
    return Projection(matmul.inputs[0], matmul.inputs[1], bias, output, matmul, between)


def behind_attention(tensor: gs.Tensor) -> tuple[gs.Tensor, tuple[str, ...]]:
    """The projection that an attention reads ``tensor`` from, and what of ``BETWEEN_OPS`` stands between the two."""
    between: list[str] = []
    while tensor.inputs and tensor.inputs[0].op in (*LAYOUT_OPS, *BETWEEN_OPS):
        node = tensor.inputs[0]
        between += [node.op] if node.op in BETWEEN_OPS else []
        tensor = node.inputs[0]
    return tensor, tuple(between)


def _projection_ahead(tensor: gs.Tensor) -> Projection | None:
    """Walk down through layout changes, each the only reader, to ``tensor x weight (+ bias)``."""
    while len(tensor.outputs) == 1 and tensor.outputs[0].op in LAYOUT_OPS:
        tensor = tensor.outputs[0].outputs[0]
    if len(tensor.outputs) != 1 or tensor.outputs[0].op != "MatMul":
        return None
    matmul = tensor.outputs[0]
    if matmul.inputs[0] is not tensor or not isinstance(matmul.inputs[1], gs.Constant):
        return None
    output, bias = matmul.outputs[0], None
    if len(output.outputs) == 1 and output.outputs[0].op == "Add":
        constant = [operand for operand in output.outputs[0].inputs if isinstance(operand, gs.Constant)]
        if len(constant) == 1:
            bias, output = constant[0], output.outputs[0].outputs[0]
    return Projection(tensor, matmul.inputs[1], bias, output, matmul)


def distance_table(bias: gs.Tensor) -> gs.Constant | None:
    """The constant [Y, H] that a bias [R, H, 1, T] is gathered from."""
    while bias.inputs and bias.inputs[0].op in LAYOUT_OPS:
        bias = bias.inputs[0].inputs[0]
    gather = bias.inputs[0] if bias.inputs else None
    if gather is None or gather.op != "Gather" or gather.attrs.get("axis", 0) != 0:
        return None
    table = gather.inputs[0]
    return table if isinstance(table, gs.Constant) and len(table.shape) == 2 else None
