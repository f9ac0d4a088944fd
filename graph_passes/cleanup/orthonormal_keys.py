"""Orthonormal key heads: W_K,h^T W_K,h becomes a multiple of the identity, and the queries take the rest.

    x - MatMul W_Q [- Add b_Q] -                       x - MatMul W_Q,i R_h^T [- Add b_Q,i R_h^T] -
    x - MatMul W_K ------------- Attention      ->     x - MatMul Q_h ----------------------------- Attention

W_K,h = Q_h R_h (``algebra.orthonormal_heads``), so that q_i k_h^T = (q_i R_h^T) (x Q_h)^T: every score stays the same
number. W_K is then as well-conditioned as a change inside its heads can make it, within a factor of the root of their
number, and with it the inverse by which the caches ``k`` and ``first-k`` make values of keys.

Needs: attentions with neither rotation nor norm between keys and scores, and without a key bias (``fold_biases``). In a
decoder-only model the attention over the prompt changes with that over the generated part. Costs and saves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

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
from tightbeam.graph_passes.model import Array, ModelGraphs, PassError, PassResult

NAME = "orthonormal_keys"


def orthonormal_keys(graphs: ModelGraphs, source: Sequence[int] = (), generated: Sequence[int] = ()) -> PassResult:
    """Change the keys of the attentions over the source and over the generated part of these layers, in place.

    Raises PassError for an attention whose keys are rotated, normalised or biased.
    """
    own = sorted({*source, *generated} if graphs.sizes.decoder_only else generated)
    for layer, block in self_attention(graphs, NAME, own).items():
        _change(Builder(graphs.decoder, f"{NAME}.self_{layer}"), block, graphs.sizes.G)
    if graphs.sizes.decoder_only:
        for layer, block in prompt_attention(graphs, NAME, own).items():
            _change(Builder(graphs.encoder, f"{NAME}.prompt_{layer}"), block, graphs.sizes.G)
        return PassResult(NAME, len(own))
    for layer, block in cross_attention(graphs, NAME, source).items():
        _change(Builder(graphs.decoder, f"{NAME}.cross_{layer}"), block, graphs.sizes.G)
    return PassResult(NAME, len(own) + len(source))


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
