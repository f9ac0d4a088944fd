"""Give the attention of a decoder-only model's prompt to one operator that makes no scores [H, N, N].

    Q [B, H, N, K] -                                          Q -
    K [B, G, N, K] - Attention - Transpose - Reshape    ->    K - PromptAttention [B, N, H V]
    V [B, G, N, V] -                                          V -
    mask of a window: [B, 1, N, N]                      ->    the attribute window
    mask and bias of ALiBi: [1, H, N, N]                ->    key_bias [H, positions]

Needs: the attentions of a traced prompt graph, whose masks are those of ``ModelGraphs.windows`` and ``key_bias``. All
are replaced, or none. Saves the scores and the masks. The operator has a CPU kernel alone
(``plugins/ops/prompt_attention``); elsewhere its function runs, which has the nodes above.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import PROMPT
from tightbeam.graph_passes.builder import MISSING, Builder, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "prompt_attention"


def prompt_attention(graphs: ModelGraphs) -> PassResult:
    """Replace the attentions of the prompt graph, in place: all of them, or none."""
    if not graphs.sizes.decoder_only:
        return PassResult(NAME, 0, "the model has an encoder")
    encoder = graphs.encoder
    nodes = [node for node in encoder.nodes if node.op == "Attention"]
    if not nodes:
        return PassResult(NAME, 0, "the prompt has no attention")
    found = [(node, _form_of(node, graphs), _flat_output(node)) for node in nodes]
    for node, form, output in found:
        if form is None or output is None:
            return PassResult(NAME, 0, f"{node.name} has another mask or layout than the trace of a prompt")
    build = Builder(encoder, NAME)
    bias = None if graphs.key_bias is None else build.constant(graphs.key_bias, np.float32)
    for node, form, output in found:
        assert form is not None and output is not None
        inputs = [*node.inputs[:3], *([] if bias is None else [MISSING, bias])]
        output.inputs.clear()
        output.shape = ["B", "N", graphs.sizes.H * graphs.sizes.V]
        output.dtype = np.dtype(np.float32)
        build.operator("PromptAttention", inputs, form, [output])
    tidy(encoder)
    return PassResult(NAME, len(nodes))


def _form_of(node: gs.Node, graphs: ModelGraphs) -> dict[str, Any] | None:
    """Attributes of the operator for a node ``prompt.<l>``; None if its mask is not what its layer has."""
    kind, _, layer = node.name.partition(".")
    if kind != PROMPT or len(node.outputs) != 1 or "scale" not in node.attrs:
        return None
    window = graphs.window(int(layer))
    masked = window > 0 or graphs.key_bias is not None
    if len(node.inputs) != (4 if masked else 3) or bool(node.attrs.get("is_causal", 0)) == masked:
        return None
    cap = float(node.attrs.get("softcap", 0))
    form: dict[str, Any] = {"scale": float(node.attrs["scale"])}
    windowed = any(graphs.window(layer) for layer in range(graphs.sizes.L))  # all nodes share one function
    return form | ({"window": window} if windowed else {}) | ({"softcap": cap} if cap else {})


def _flat_output(node: gs.Node) -> gs.Tensor | None:
    """The tensor [B, N, H V] of an attention's output, behind a Transpose and a Reshape that alone read it."""
    tensor = node.outputs[0]
    for op in ("Transpose", "Reshape"):
        if len(tensor.outputs) != 1 or tensor.outputs[0].op != op:
            return None
        reader = tensor.outputs[0]
        if op == "Transpose" and reader.attrs.get("perm") != [0, 2, 1, 3]:
            return None
        tensor = reader.outputs[0]
    return tensor
