"""Forms of the keys that ``k`` and ``first-k`` cache: orthonormal heads, and a few more numbers beside the keys.

    x - MatMul W_Q [- Add b_Q] -                       x - MatMul W_Q,i R_h^T [- Add b_Q,i R_h^T] -
    x - MatMul W_K ------------- Attention      ->     x - MatMul Q_h ----------------------------- Attention

W_K,h = Q_h R_h (``algebra.orthonormal_heads``), so that q_i k_h^T = (q_i R_h^T) (x Q_h)^T: every score stays the same
number. W_K is then as well-conditioned as a change inside its heads can make it, within a factor of the root of their
number, and with it the inverse by which values are made of keys.

The few numbers (``algebra.few_columns``) are for the passes of caches, which read ``ModelGraphs.few``.

Needs, for orthonormal heads: attentions with neither rotation nor norm between keys and scores, and without a key bias
(``fold_biases``). In a decoder-only model the attention over the prompt changes with that over the generated part.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tightbeam.graph_passes.attention import (
    AttentionBlock,
    Projection,
    cross_attention,
    prompt_attention,
    self_attention,
)
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.caches.algebra import orthonormal_heads, times_heads
from tightbeam.graph_passes.caches.kinds import KeyForm
from tightbeam.graph_passes.model import Array, ModelGraphs, PassError, PassResult

NAME = "key_forms"
NONE: Mapping[int, KeyForm] = {}


def key_forms(
    graphs: ModelGraphs, source: Mapping[int, KeyForm] = NONE, generated: Mapping[int, KeyForm] = NONE
) -> PassResult:
    """Give the keys of the attentions over the source and over the generated part their forms, by layer, in place.

    Raises PassError for orthonormal heads of keys that are rotated, normalised or biased.
    """
    graphs.few = {
        (part, layer): keys.few
        for part, forms in (("source", source), ("generated", generated))
        for layer, keys in forms.items()
    }
    changed = len(source) + len(generated)
    of_source, of_generated = (
        [layer for layer, keys in forms.items() if keys.orthonormal] for forms in (source, generated)
    )
    own = sorted({*of_source, *of_generated} if graphs.sizes.decoder_only else of_generated)
    for layer, block in self_attention(graphs, NAME, own).items():
        _change(Builder(graphs.decoder, f"{NAME}.self_{layer}"), block, graphs.sizes.G)
    if graphs.sizes.decoder_only:
        for layer, block in prompt_attention(graphs, NAME, own).items():
            _change(Builder(graphs.encoder, f"{NAME}.prompt_{layer}"), block, graphs.sizes.G)
        return PassResult(NAME, changed)
    for layer, block in cross_attention(graphs, NAME, of_source).items():
        _change(Builder(graphs.decoder, f"{NAME}.cross_{layer}"), block, graphs.sizes.G)
    return PassResult(NAME, changed)


def _change(build: Builder, block: AttentionBlock, G: int) -> None:
    if block.between or block.key.bias is not None:
        raise PassError(f"{NAME}: {block.node.name} rotates or normalises its keys, or adds a bias to them")
    keys, factors = orthonormal_heads(block.key.weight.values, G)
    _set_weight(build, block.key, keys)
    _set_weight(build, block.query, times_heads(block.query.weight.values, factors))
    if block.query.bias is not None:
        bias = build.constant(times_heads(block.query.bias.values.reshape(-1), factors), block.query.bias.dtype)
        add = block.query.output.inputs[0]
        add.inputs = [bias if tensor is block.query.bias else tensor for tensor in add.inputs]


def _set_weight(build: Builder, projection: Projection, weight: Array) -> None:
    projection.matmul.inputs[1] = build.constant(weight, np.dtype(projection.weight.dtype))
