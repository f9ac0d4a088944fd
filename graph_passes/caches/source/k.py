"""Source cache ``k``: the keys of every layer once a sample, and no values (Slim attention, options 1 and 2).

The values are a linear function of the keys, V = k W_KV with W_KV = W_K^-1 W_V, applied after the softmax:
out_i = (P_i k) W_KV,i. Needs: cross-attentions over ``encoder_hidden_states`` whose key and value biases are folded
(``fold_biases``), and key heads that are together as wide as the model, E >= D. Half of ``kv``: L N E numbers a sample.
Exact in algebra; how exact in floating point depends on W_K, so an export measures it.
Operator: ``plugins/latent_attention``. Algebra: ``key_algebra``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.attention import cross_attention
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.caches.algebra import right_inverse_times, value_heads
from tightbeam.graph_passes.caches.cached_keys import require_own_space, require_wide_keys
from tightbeam.graph_passes.caches.source._cross_attention import (
    attend_keys,
    drop_encoder_states,
    flags_per_sample,
    keys_in_encoder,
    source_saved,
)
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "cross_keys"


def cross_keys(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Encoder outputs ``source.<l>.key`` [B, N, G K]; the decoder reads each once, as keys and as values."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, NAME, layers)
    require_own_space(blocks, NAME)
    require_wide_keys(blocks, NAME)
    build = Builder(graphs.decoder, NAME)
    flags = flags_per_sample(graphs, build)
    for layer, block in blocks.items():
        W_KV = right_inverse_times(block.key.weight.values, block.value.weight.values)  # [E, G V]
        keys = keys_in_encoder(graphs, block, layer)
        attend_keys(build, block, f"attended_{layer}", keys, flags, value_heads(W_KV, sizes.H, sizes.V), sizes.rows)
    drop_encoder_states(graphs)
    return PassResult(NAME, len(blocks), bytes_saved=source_saved("k", len(blocks), sizes))
