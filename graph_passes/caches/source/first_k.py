"""Source cache ``first-k``: the keys of one layer in place of the encoder's output (Slim attention's hybrid).

    S - MatMul W_K,l - K -                   S - MatMul W_K1 - source.<first>.key [B, N, G K]
    S - MatMul W_V,l - V - Attention    ->   Q_1 - LatentAttention(source.<first>.key) - MatMul W_KV1,i
                                             Q_l - MatMul W_K,l' - LatentAttention(the same) - MatMul W_V,l'

Weight absorption over k1 = S W_K1 in place of S, with W_K,l' = W_K1^+ W_K,l and W_V,l' = W_K1^+ W_V,l; the first layer
reads its own keys. Needs: cross-attentions over ``encoder_hidden_states`` whose key and value biases are folded
(``fold_biases``), and E >= D. Cache: N (E + r) numbers a sample (``cached_keys``), whatever the number of layers; like
``states``, less one layer's products. Exact in algebra; in floating point as exact as the condition of W_K1 allows,
which an export measures. Operator: ``plugins/ops/latent_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.attention import cross_attention
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.caches.algebra import over_first_keys
from tightbeam.graph_passes.caches.bytes import source_saved
from tightbeam.graph_passes.caches.cached_keys import CachedKeys, require_one_source, require_wide_keys
from tightbeam.graph_passes.caches.kind import AttentionCost, SourceKind, refuse_narrow_keys
from tightbeam.graph_passes.caches.source._cross_attention import attend_matrix, drop_encoder_states, rows_in_encoder
from tightbeam.graph_passes.caches.source_inputs import sample_flags
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "cross_first_keys"


def cross_first_keys(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Make ``source.<first>.key`` [B, N, G K'] an output of the encoder, which all the layers read."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, NAME, layers)
    require_one_source(blocks, NAME)
    first, *others = blocks
    require_wide_keys({first: blocks[first]}, NAME)
    build = Builder(graphs.decoder, NAME)
    flags = sample_flags(graphs, build)
    own = CachedKeys.in_graphs(graphs, "source", first, blocks[first])
    keys = rows_in_encoder(graphs, own.key_projection(blocks[first]), first, "key")
    for layer in (*others, first):
        block = blocks[layer]
        W_K, W_K1 = (own.weight, None) if layer == first else (block.key.weight.values, own.weight)
        form = over_first_keys(W_K, block.value.weight.values, W_K1)
        attend_matrix(build, block, layer, keys, flags, form, sizes, own)
    drop_encoder_states(graphs)
    return PassResult(NAME, len(blocks), bytes_saved=source_saved(SOURCE_FIRST_K, len(blocks), sizes))


SOURCE_FIRST_K = SourceKind(
    name="first-k",
    cross_pass=cross_first_keys,
    numbers=lambda sizes, layers: sizes.key_numbers,
    projected=lambda sizes, layers: sizes.source_D * sizes.E,
    attention=lambda sizes, r: AttentionCost.over_rows(sizes, sizes.E + r, "LatentAttention of states", inverse=True),
    first_attention=lambda sizes, r: AttentionCost.over_keys(sizes, "LatentAttention of keys", r),
    one_matrix=over_first_keys,
    safer="states",
    inverts=True,
    key_forms=True,
    refusal=lambda sizes: refuse_narrow_keys(sizes, sizes.source_D),
)
