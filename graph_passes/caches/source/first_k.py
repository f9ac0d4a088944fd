"""Source cache ``first-k``: the keys of one layer in place of the encoder's output (Slim attention's hybrid).

    S - MatMul W_K,l - K -                   S - MatMul W_K1 - source.<first>.key [B, N, G K]
    S - MatMul W_V,l - V - Attention    ->   Q_1 - LatentAttention(source.<first>.key) - MatMul W_KV1,i
                                             Q_l - MatMul W_K,l' - LatentAttention(the same) - MatMul W_V,l'

Weight absorption over k1 = S W_K1 in place of S, with W_K,l' = W_K1^+ W_K,l and W_V,l' = W_K1^+ W_V,l; the first layer
reads its own keys. Needs: cross-attentions over ``encoder_hidden_states`` whose key and value biases are folded
(``fold_biases``), and E >= D. Cache: N E numbers a sample, whatever the number of layers; as ``states``, without one
layer's products. Exact in algebra; in floating point as exact as the condition of W_K1 allows, which an export
measures. Operator: ``plugins/ops/latent_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.attention import cross_attention
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.caches.algebra import key_heads, right_inverse_times, value_heads
from tightbeam.graph_passes.caches.bytes import source_saved
from tightbeam.graph_passes.caches.cached_keys import require_one_source, require_wide_keys
from tightbeam.graph_passes.caches.source._cross_attention import (
    attend_keys,
    attend_states,
    drop_encoder_states,
    keys_in_encoder,
)
from tightbeam.graph_passes.caches.source_inputs import sample_flags
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "cross_first_keys"


def cross_first_keys(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Make ``source.<first>.key`` [B, N, G K] an output of the encoder, which all the layers read."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, NAME, layers)
    require_one_source(blocks, NAME)
    first, *others = blocks
    require_wide_keys({first: blocks[first]}, NAME)
    build = Builder(graphs.decoder, NAME)
    flags = sample_flags(graphs, build)
    W_K1 = blocks[first].key.weight.values
    keys = keys_in_encoder(graphs, blocks[first], first)
    for layer in others:
        block = blocks[layer]
        W_K = key_heads(right_inverse_times(W_K1, block.key.weight.values), sizes.H, sizes.K)  # [H, K, E]
        W_V = value_heads(right_inverse_times(W_K1, block.value.weight.values), sizes.H, sizes.V)  # [H, E, V]
        attend_states(build, block, f"attended_{layer}", keys, flags, W_K, W_V, sizes.rows)
    W_KV = right_inverse_times(W_K1, blocks[first].value.weight.values)
    attend_keys(build, blocks[first], f"attended_{first}", keys, flags, value_heads(W_KV, sizes.H, sizes.V), sizes.rows)
    drop_encoder_states(graphs)
    return PassResult(NAME, len(blocks), bytes_saved=source_saved("first-k", len(blocks), sizes))
