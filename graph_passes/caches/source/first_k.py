"""Source cache ``first-k``: the keys of one layer, which stand for the encoder output in every other (Slim attention's
hybrid of K-cache and X-cache).

k1 = S W_K1 is as good as S where W_K1 has an inverse: every other layer reads k1 with W_K,l' = W_K1^-1 W_K,l and
W_V,l' = W_K1^-1 W_V,l in the form of EL-attention, the first one reads its own keys by head. Needs: cross-attentions
over ``encoder_hidden_states`` whose key and value biases are folded (``fold_biases``), and E >= D.
N E numbers a sample, whatever the number of layers: as ``states``, and the first layer's queries need no product.
Exact in algebra; how exact in floating point depends on W_K1, so an export measures it.
Operator: ``plugins/latent_attention``. Algebra: ``key_algebra``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.attention import cross_attention
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.caches.algebra import key_heads, right_inverse_times, value_heads
from tightbeam.graph_passes.caches.cached_keys import require_own_space, require_wide_keys
from tightbeam.graph_passes.caches.source._cross_attention import (
    attend_keys,
    attend_states,
    drop_encoder_states,
    flags_per_sample,
    keys_in_encoder,
    source_saved,
)
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "cross_first_keys"


def cross_first_keys(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Encoder output ``source.<first>.key`` [B, N, G K], of the first of the layers, which all of them read."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, NAME, layers)
    require_own_space(blocks, NAME)
    first, *others = blocks
    require_wide_keys({first: blocks[first]}, NAME)
    build = Builder(graphs.decoder, NAME)
    flags = flags_per_sample(graphs, build)
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
