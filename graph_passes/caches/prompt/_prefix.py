"""One softmax over two caches: what a decoder-only model's layer attends to in its prompt, on its way to the attention
over the generated part.

A pass of the source gives a layer's traced Attention node a prior, the attention over the prompt alone: its output and
the logarithm of the sum of its exponentials stand as inputs 3 and 4, and attribute ``prior`` says what the output is
made of. A pass of the generated part moves both into an operator of ours, which joins the two.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import AttentionBlock, past_concat
from tightbeam.graph_passes.builder import Builder, graph_input, read_instead
from tightbeam.graph_passes.caches.algebra import multiply_heads, pseudo_inverse_heads, right_inverse_times, value_heads
from tightbeam.graph_passes.caches.cached_keys import CachedKeys
from tightbeam.graph_passes.caches.source._cross_attention import flags_per_sample
from tightbeam.graph_passes.model import ModelGraphs, PassError, Sizes

VALUES, KEYS, INPUTS = "values", "keys", "inputs"
"""What a prior's output is a weighted sum of: each head's values [R, H V], whole rows of keys [R, H G K], or of the
layer's inputs [R, H D]."""


def query_rows(build: Builder, block: AttentionBlock, sizes: Sizes) -> gs.Tensor:
    """A layer's queries as its scores see them, [R, H K]."""
    return build.rows(block.node.inputs[0], sizes.H * sizes.K)


def share_query(block: AttentionBlock, query: gs.Tensor) -> None:
    """Let who reads a layer's queries as rows read ``query`` [R, H K], which is the same, out of a shared product."""
    for reader in list(block.node.inputs[0].outputs):
        if reader is not block.node:
            read_instead(reader.outputs[0], query)


def set_prefix(block: AttentionBlock, kind: str, output: gs.Tensor, lse: gs.Tensor) -> None:
    """Let a layer go on from the attention over its prompt; ``kind``: what ``output`` is made of."""
    block.node.inputs = [*block.node.inputs[:3], output, lse]
    block.node.attrs["prior"] = kind


def prefix_of(
    build: Builder, sizes: Sizes, pass_name: str, layer: int, block: AttentionBlock, space: str
) -> list[gs.Tensor]:
    """A layer's prior, its output in ``space`` as rows [R, ...], and its lse [R, H].

    Raises PassError where the prompt is kept in a form that does not give that, or no pass of the source ran.
    """
    kind = block.node.attrs.get("prior")
    if kind is None:
        kept = "kv-per-beam, which goes with kv-reordered alone" if _is_joined(block) else "nothing of the prompt yet"
        raise PassError(f"{pass_name}: layer {layer} keeps {kept}; choose another source cache, and run its pass first")
    output, lse = block.node.inputs[3:5]
    H = sizes.H
    if kind == space:
        return [output, lse]
    keys_kept = CachedKeys.of(block)
    W_K, W_V = keys_kept.weight, block.value.weight.values
    if space == VALUES:
        if kind == KEYS:
            values = keys_kept.values(build, block, output, sizes)
        else:
            values = multiply_heads(build, output, value_heads(W_V, H, sizes.V), block.value.weight.dtype)
        return [build.reshape(values, [-1, H * sizes.V]), lse]
    if (kind, space) == (VALUES, KEYS):
        W = pseudo_inverse_heads(value_heads(right_inverse_times(W_K, W_V), H, sizes.V))  # [H, V, E]
        keys = multiply_heads(build, output, W, block.key.weight.dtype)  # [R, H, E]
        if keys_kept.bias is not None:
            keys = build.add("Add", [keys, build.constant(keys_kept.bias, block.key.weight.dtype)])
        return [build.reshape(keys, [-1, H * W_K.shape[1]]), lse]
    if (kind, space) == (INPUTS, KEYS):
        D, E = W_K.shape
        weight = build.constant(W_K, block.key.weight.dtype)
        keys = build.add("MatMul", [build.reshape(output, [-1, H, D]), weight])  # [R, H, E]
        return [build.reshape(keys, [-1, H * E]), lse]
    raise PassError(
        f"{pass_name}: layer {layer} keeps {kind} of the prompt, which do not give {space}; keep the same for both "
        "parts, or kv for the generated one"
    )


def require_prompt_per_beam(graphs: ModelGraphs, pass_name: str, layer: int, block: AttentionBlock) -> None:
    """Raise PassError for a layer of a decoder-only model whose prompt is not kept beam by beam."""
    if graphs.sizes.decoder_only and not _is_joined(block):
        raise PassError(
            f"{pass_name}: layer {layer} does not keep its prompt as kv-per-beam, with which alone kv-reordered goes"
        )


def _is_joined(block: AttentionBlock) -> bool:
    """Whether the prompt's keys stand in front of the past."""
    keys = block.node.inputs[1]
    return past_concat(keys) is not keys.inputs[0]


class PromptFlags:
    """Which positions of the prompt each layer sees at this step, as our operators take it: bool [B, N].

    A layer with a window sees those alone that are less than so many positions before the newest, which is the same for
    all beams of a sample.
    """

    def __init__(self, graphs: ModelGraphs, build: Builder) -> None:
        self.graphs = graphs
        self.build = build
        self.by_window = {0: flags_per_sample(graphs, build)}

    def of(self, layer: int) -> gs.Tensor:
        window = self.graphs.window(layer)
        if window not in self.by_window:
            self.by_window[window] = self._inside(window)
        return self.by_window[window]

    def _inside(self, window: int) -> gs.Tensor:
        build, decoder = self.build, self.graphs.decoder
        first, lengths = (graph_input(decoder, name, np.int32, ["B"]) for name in ("first_positions", "lengths"))
        after_newest = build.add("Cast", [build.add("Add", [first, lengths])], {"to": 7})  # [B]
        mask = next(tensor for tensor in decoder.inputs if tensor.name == "attention_mask")
        N = build.add("Squeeze", [build.add("Shape", [mask], {"start": 1, "end": 2})])
        positions = build.add("Range", [build.constant(0), N, build.constant(1)])
        column = build.add("Unsqueeze", [after_newest, build.constant([1])])
        ages = build.add("Sub", [column, positions])  # [B, N], from 1
        inside = build.add("LessOrEqual", [ages, build.constant(window)])
        return build.add("And", [self.by_window[0], inside])
