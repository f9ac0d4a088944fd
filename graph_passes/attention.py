"""Attention in a graph: an ``Attention`` node with the projections around it, found by kind and layer.

    x - MatMul W_Q [- Add b_Q] [- norm] [- rotary] ---------------------------- Q
    x - MatMul W_K [- Add b_K] [- norm] [- rotary] [- Concat(past.<l>.key)] --- K - Attention - MatMul W_O [- Add b_O]
    x - MatMul W_V [- Add b_V] ------------------- [- Concat(past.<l>.value)] - V

Changes of layout (``LAYOUT_OPS``) may occur anywhere between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.model import ModelGraphs, PassError, Sizes

LAYOUT_OPS = ("Reshape", "Transpose", "Unsqueeze")
ROTATION = "RotaryEmbedding"
NORM = "RMSNormalization"
BETWEEN_OPS = (ROTATION, NORM, "LayerNormalization")
"""Operators that a model may apply to queries and keys between projection and scores."""
CROSS, SELF, PROMPT = "cross", "self", "prompt"
"""Kinds of attention: the first part of the names ``<kind>.<layer>`` of canonical Attention nodes."""


@dataclass(frozen=True)
class Projection:
    """``source`` x ``weight`` (+ ``bias``) -> ``output``, as MatMul and Add."""

    source: gs.Tensor
    weight: gs.Constant
    bias: gs.Constant | None
    output: gs.Tensor
    """read by the rest of the graph"""
    matmul: gs.Node
    between: tuple[str, ...] = ()
    """operators of ``BETWEEN_OPS`` between ``output`` and the attention"""


@dataclass(frozen=True)
class AttentionBlock:
    """One Attention node with its four projections."""

    node: gs.Node
    query: Projection
    key: Projection
    value: Projection
    output: Projection
    past: tuple[gs.Tensor, gs.Tensor] | None
    """keys and values of the past, of self-attention"""
    new: tuple[gs.Tensor, gs.Tensor] | None
    """key and value of the new token, as they follow the past"""
    distance_bias: gs.Constant | None
    """[Y, H]: bias of the scores by the distance from the query back to a key"""

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return float(self.node.attrs["scale"])

    @property
    def attributes(self) -> dict[str, float]:
        """Attributes of an operator of ``plugins/`` that makes the same scores: scale, and cap if there is one."""
        softcap = float(self.node.attrs.get("softcap", 0))
        return {"scale": self.scale, **({"softcap": softcap} if softcap else {})}

    @property
    def between(self) -> tuple[str, ...]:
        """Operators between the projections of query and key and their scores."""
        return self.query.between + self.key.between

    @property
    def keeps_key_bias(self) -> bool:
        """True if q . b_K adds another number to the scores at each position, since it is rotated, normed or capped."""
        return bool(self.between) or "softcap" in self.attributes

    def replace_with(self, attended: gs.Tensor) -> None:
        """Feed the output projection with ``attended`` [R, 1, H V] in place of this attention's output."""
        self.output.matmul.inputs[0] = attended


def attention_blocks(graph: gs.Graph, pass_name: str) -> list[AttentionBlock]:
    """Attention nodes that project their own keys, in order of execution, without those that read a cache.

    Raises
    ------
    PassError
        At the first node whose projections are not found.
    """
    nodes = [node for node in graph.nodes if node.op == "Attention" and node.inputs[1].inputs]
    return [_attention_block(node, pass_name) for node in nodes]


def cross_attention(
    graphs: ModelGraphs, pass_name: str, layers: Sequence[int] | None = None
) -> dict[int, AttentionBlock]:
    """Cross-attention of the decoder's ``layers``, all by default, by layer.

    Keys and values are projected from ``encoder_hidden_states``. Raises PassError for a layer already rewritten.
    """
    if graphs.sizes.one_softmax:
        raise PassError(f"{pass_name}: the model has no cross-attention; one softmax covers its source and its output")
    return _named_blocks(graphs.decoder, graphs.sizes, pass_name, CROSS, layers)


def self_attention(
    graphs: ModelGraphs, pass_name: str, layers: Sequence[int] | None = None
) -> dict[int, AttentionBlock]:
    """Self-attention of the decoder's ``layers``, all by default, by layer.

    Keys and values are a past, which is a graph input, and then the new token's. Raises PassError for a layer already
    rewritten.
    """
    return _named_blocks(graphs.decoder, graphs.sizes, pass_name, SELF, layers)


def prompt_attention(
    graphs: ModelGraphs, pass_name: str, layers: Sequence[int] | None = None
) -> dict[int, AttentionBlock]:
    """Causal self-attention over the prompt of a decoder-only model's ``layers``, all by default, by layer."""
    return _named_blocks(graphs.encoder, graphs.sizes, pass_name, PROMPT, layers)


def source_keys(graphs: ModelGraphs, pass_name: str, layers: Sequence[int] | None = None) -> dict[int, Projection]:
    """Projections of the source's keys in a model with one softmax, for the decoder's ``layers``, all by default."""
    if graphs.sizes.decoder_only:
        return {layer: block.key for layer, block in prompt_attention(graphs, pass_name, layers).items()}
    outputs = {tensor.name: tensor for tensor in graphs.encoder.outputs}
    found = {}
    for layer in range(graphs.sizes.L) if layers is None else layers:
        projection = projection_behind(outputs[f"source.{layer}.key"])
        if projection is None:
            raise PassError(f"{pass_name}: the source's keys of layer {layer} are not a MatMul by a weight")
        found[layer] = projection
    return found


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
    if "scale" not in node.attrs or causal:
        raise PassError(f"{pass_name}: {where} needs a scale and no causal mask, it has {dict(node.attrs)}")

    def projection(tensor: gs.Tensor, role: str) -> Projection:
        found = projection_behind(tensor)
        if found is None:
            raise PassError(f"{pass_name}: the {role} of {where} is not a MatMul by a weight")
        return found

    query, key, value = node.inputs[:3]
    past, new = None, None
    concats = [past_concat(tensor) for tensor in (key, value)]
    if concats[0] is not None and concats[1] is not None:
        past = (concats[0].inputs[0], concats[1].inputs[0])
        new = key, value = concats[0].inputs[1], concats[1].inputs[1]
    output = _projection_ahead(node.outputs[0])
    if output is None:
        raise PassError(f"{pass_name}: the output of {where} does not go into a MatMul by a weight")
    bias = distance_table(node.inputs[3]) if past is not None and len(node.inputs) > 3 else None
    return AttentionBlock(
        node, projection(query, "query"), projection(key, "key"), projection(value, "value"), output, past, new, bias
    )


def past_concat(tensor: gs.Tensor) -> gs.Node | None:
    """The Concat of past and new keys or values behind an attention's input, maybe itself behind a prompt's."""
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
    """The projection that an attention reads ``tensor`` from, and the ``BETWEEN_OPS`` between the two."""
    between: list[str] = []
    while tensor.inputs and tensor.inputs[0].op in (*LAYOUT_OPS, *BETWEEN_OPS):
        node = tensor.inputs[0]
        between += [node.op] if node.op in BETWEEN_OPS else []
        tensor = node.inputs[0]
    return tensor, tuple(between)


def head_width(heads: gs.Tensor) -> int | None:
    """K of queries, keys or values [B, H, N, K], read from the shape that a Reshape gave them.

    None if that does not end with a constant above 0.
    """
    while heads.inputs and heads.inputs[0].op in ("Transpose", *BETWEEN_OPS):
        heads = heads.inputs[0].inputs[0]
    if not heads.inputs or heads.inputs[0].op != "Reshape":
        return None
    shape = heads.inputs[0].inputs[1]
    if shape.inputs and shape.inputs[0].op == "Concat":
        shape = shape.inputs[0].inputs[-1]
    width = int(shape.values.reshape(-1)[-1]) if isinstance(shape, gs.Constant) else 0
    return width if width > 0 else None


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
    """The constant [Y, H] from which a bias [R, H, 1, T] is gathered."""
    while bias.inputs and bias.inputs[0].op in LAYOUT_OPS:
        bias = bias.inputs[0].inputs[0]
    gather = bias.inputs[0] if bias.inputs else None
    if gather is None or gather.op != "Gather" or gather.attrs.get("axis", 0) != 0:
        return None
    table = gather.inputs[0]
    return table if isinstance(table, gs.Constant) and len(table.shape) == 2 else None


def project_together(build: Builder, parts: Sequence[Projection], where: str) -> gs.Tensor:
    """One product for several projections of one tensor.

        x - MatMul W_Q - Add b_Q
        x - MatMul W_K              ->   x - MatMul [W_Q W_K W_V] - Add [b_Q 0 b_V]
        x - MatMul W_V - Add b_V

    Parameters
    ----------
    build
        Builder of the graph; its prefix is the pass's name.
    parts
        Projections [., D] -> [., width] of one tensor.
    where
        Name of the attention, for the error.

    Returns
    -------
    gs.Tensor
        [., ., total width]: the projections side by side.

    Raises
    ------
    PassError
        If the parts are projected from different tensors.
    """
    if any(part.source is not parts[0].source for part in parts):
        raise PassError(f"{build.prefix}: query, key and value of {where} are projected from different tensors")
    dtype = parts[0].weight.dtype
    weight = np.concatenate([part.weight.values for part in parts], axis=1)
    together = build.add("MatMul", [parts[0].source, build.constant(weight, dtype)])
    if all(part.bias is None for part in parts):
        return together
    widths = [part.weight.shape[1] for part in parts]
    biases = [
        np.zeros(width, dtype) if part.bias is None else part.bias.values.reshape(-1)
        for part, width in zip(parts, widths, strict=True)
    ]
    return build.add("Add", [together, build.constant(np.concatenate(biases), dtype)])
