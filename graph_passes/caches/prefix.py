"""One softmax over two caches: the attention over the prompt is the prefix of that over the generated part.

    o = (exp(lse_p) o_p + exp(lse_g) o_g) / (exp(lse_p) + exp(lse_g))      merging attention states (FlashInfer, vLLM)

Here o_p is the prefix output, the attention over the prompt alone, and lse_p the logarithm of its sum of exponentials.
The pass of the prompt cache leaves both as inputs 3 and 4 of the layer's traced Attention node, with the attribute
``prefix`` for the form of the output. The pass of the generated cache converts the output to the form of its operator's
own, o_g, and moves both into the operator, which merges them (optional inputs of ``plugins/ops/beam_attention``).
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import AttentionBlock
from tightbeam.graph_passes.builder import Builder, read_instead
from tightbeam.graph_passes.caches.algebra import (
    multiply_heads,
    pseudo_inverse_heads,
    right_inverse_times,
    value_heads,
)
from tightbeam.graph_passes.caches.cached_keys import CachedKeys
from tightbeam.graph_passes.model import ModelGraphs, PassError, Sizes

VALUES, KEYS, INPUTS = "values", "keys", "inputs"
"""Forms of a prefix output, by the rows that it is a weighted sum of: each head's values [R, H V], whole rows of keys
[R, H E], or the layer's inputs [R, H D]. :func:`prefix_of` makes values and keys of all three, inputs of inputs alone.
"""
CONCATENATED = "concatenated"
"""In place of a form: keys and values of the prompt precede those of the generated part in one attention."""


def query_rows(build: Builder, block: AttentionBlock, sizes: Sizes) -> gs.Tensor:
    """Queries of a layer as its scores read them, [R, H K]."""
    return build.rows(block.node.inputs[0], sizes.H * sizes.K)


def share_query(block: AttentionBlock, query: gs.Tensor) -> None:
    """Make other readers of a layer's queries read ``query`` [R, H K], the same numbers from a shared product."""
    for reader in list(block.node.inputs[0].outputs):
        if reader is not block.node:
            read_instead(reader.outputs[0], query)


def set_prefix(block: AttentionBlock, form: str, output: gs.Tensor, lse: gs.Tensor) -> None:
    """Leave a layer's attention over its prompt for the pass of the generated cache; ``form`` describes ``output``."""
    block.node.inputs = [*block.node.inputs[:3], output, lse]
    block.node.attrs["prefix"] = form


def prefix_of(
    build: Builder, graphs: ModelGraphs, pass_name: str, layer: int, block: AttentionBlock, form: str
) -> list[gs.Tensor]:
    """A layer's prefix for an operator of the generated part.

    Parameters
    ----------
    build
        Builder of the decoder.
    graphs
        For the sizes of the model, and for the numbers that are cached beside keys.
    pass_name, layer
        For the error.
    block
        The layer's self-attention.
    form
        Form of the operator's own output; the kinds of cache go together (``kinds.PROMPT_PAIRS``).

    Returns
    -------
    list
        Prefix output [R, H V], [R, H E] or [R, H D] by ``form``, and prefix lse [R, H].

    Raises
    ------
    PassError
        If no pass of a prompt cache has run.
    """
    found = block.node.attrs.get("prefix")
    if found is None:
        raise PassError(
            f"{pass_name}: layer {layer} caches nothing of the prompt yet; run a pass of its source cache first"
        )
    output, lse = block.node.inputs[3:5]
    sizes, few, H = graphs.sizes, graphs.few, graphs.sizes.H
    if found == form:
        if form == KEYS and few.get(("source", layer), 0) != few.get(("generated", layer), 0):
            raise PassError(f"{pass_name}: layer {layer} caches other numbers of the prompt than of the generated part")
        return [output, lse]
    part = "source" if found == KEYS else "generated"
    cached = CachedKeys.in_graphs(graphs, part, layer, block)
    W_K, W_V = cached.weight, block.value.weight.values
    if form == VALUES:
        if found == KEYS:
            values = cached.values(build, block, output, sizes)
        else:
            values = multiply_heads(build, output, value_heads(W_V, H, sizes.V), block.value.weight.dtype)
        return [build.reshape(values, [-1, H * sizes.V]), lse]
    assert form == KEYS
    if found == VALUES:
        W = pseudo_inverse_heads(value_heads(right_inverse_times(W_K, W_V), H, sizes.V))  # [H, V, E]
        keys = multiply_heads(build, output, W, block.key.weight.dtype)  # [R, H, E]
        if cached.bias is not None:
            keys = build.add("Add", [keys, build.constant(cached.bias, block.key.weight.dtype)])
        return [build.reshape(keys, [-1, H * W_K.shape[1]]), lse]
    D, E = W_K.shape  # E = G K' with a few more numbers
    weight = build.constant(W_K, block.key.weight.dtype)
    keys = build.add("MatMul", [build.reshape(output, [-1, H, D]), weight])  # [R, H, E]
    return [build.reshape(keys, [-1, H * E]), lse]
