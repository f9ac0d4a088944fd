"""Source cache ``k``: the keys of every layer once a sample, and no values (Slim attention, options 1 and 2).

    decoder: S - MatMul W_K - K -                      encoder: S - MatMul W_K - source.<l>.key [B, N, G K]
             S - MatMul W_V - V - Attention      ->    decoder: Q - LatentAttention(source.<l>.key) - MatMul W_KV,i

Values are a linear function of the keys, applied after the softmax: W_KV = W_K^+ W_V. Needs: cross-attentions over
``encoder_hidden_states`` whose key and value biases are folded (``fold_biases``), and E >= D. Cache: L N E numbers a
sample, half of ``kv``. Exact in algebra; in floating point as exact as the condition of W_K allows, which an export
measures. Operator: ``plugins/ops/latent_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.attention import cross_attention
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.caches.algebra import right_inverse_times, value_heads
from tightbeam.graph_passes.caches.bytes import source_saved
from tightbeam.graph_passes.caches.cached_keys import require_one_source, require_wide_keys
from tightbeam.graph_passes.caches.source._cross_attention import attend_keys, drop_encoder_states, keys_in_encoder
from tightbeam.graph_passes.caches.source_inputs import sample_flags
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "cross_keys"


def cross_keys(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Make ``source.<l>.key`` [B, N, G K] outputs of the encoder, which the decoder reads as keys and as values."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, NAME, layers)
    require_one_source(blocks, NAME)
    require_wide_keys(blocks, NAME)
    build = Builder(graphs.decoder, NAME)
    flags = sample_flags(graphs, build)
    for layer, block in blocks.items():
        W_KV = right_inverse_times(block.key.weight.values, block.value.weight.values)  # [E, G V]
        keys = keys_in_encoder(graphs, block, layer)
        attend_keys(build, block, f"attended_{layer}", keys, flags, value_heads(W_KV, sizes.H, sizes.V), sizes.rows)
    drop_encoder_states(graphs)
    return PassResult(NAME, len(blocks), bytes_saved=source_saved("k", len(blocks), sizes))
