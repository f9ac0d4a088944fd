"""Generated cache ``k``: keys that never move, and no values (Slim attention, option 2).

    past.<l>.key, past.<l>.value - Concat - Attention
    ->  BeamLatentAttention(query, new row, cache.<l>.key [R, G, T_max, K], ancestry, lengths) - MatMul W_KV,i

Values are a linear function of the keys, applied after the softmax: W_KV = W_K^+ W_V. Rotated keys (RoPE) are cached
before rotation, bias included, and rotated when they are read. If keys have a norm, its factor for each head and
position is cached beside them. Query and key are one product.

K plus r (``ModelGraphs.few``): r more numbers behind the keys, K' = K + r / G (``cached_keys``).

Needs: self-attentions over ``past.<l>.key`` and ``past.<l>.value``, whose projections read one tensor and whose key and
value biases are folded (``fold_biases``), and E >= D. Cache: L M T (E + r) numbers a sample, half of ``kv``. Exact in
algebra; in floating point as exact as the condition of W_K allows, which an export measures. Operator:
``plugins/ops/beam_latent_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import NORM, ROTATION, project_together
from tightbeam.graph_passes.builder import read_instead
from tightbeam.graph_passes.caches.algebra import over_keys
from tightbeam.graph_passes.caches.bytes import generated_saved
from tightbeam.graph_passes.caches.cached_keys import (
    CachedKeys,
    before_rotation,
    require_one_source,
    require_wide_keys,
)
from tightbeam.graph_passes.caches.generated._self_attention import SelfAttentionCaches
from tightbeam.graph_passes.caches.kind import AttentionCost, GeneratedKind, refuse_narrow_keys
from tightbeam.graph_passes.caches.prefix import INPUTS, KEYS, VALUES, share_query
from tightbeam.graph_passes.model import ModelGraphs, PassResult, Sizes

NAME = "self_keys"


def self_keys(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Cache ``cache.<l>.key`` [R, G, T_max, K'], and ``cache.<l>.scale`` [R, G, T_max, 1] if keys have a norm."""
    sizes = graphs.sizes
    caches = SelfAttentionCaches(graphs, NAME, layers)
    require_one_source(caches.blocks, NAME, (ROTATION, NORM))
    require_wide_keys(caches.blocks, NAME)
    build = caches.build
    for layer, block in caches.blocks.items():
        cached = CachedKeys.in_graphs(graphs, "generated", layer, block)
        width, E = sizes.K + cached.behind, cached.weight.shape[1]
        others_read_queries = bool(block.between) or sizes.one_softmax
        of_queries = block.query if others_read_queries else cached.query_projection(block, sizes.H)
        queries = of_queries.weight.shape[1]
        together = project_together(build, (of_queries, cached.key_projection(block)), block.node.name)
        query, row = gs.Variable(f"{NAME}.query_{layer}"), gs.Variable(f"{NAME}.row_{layer}")
        build.add("Split", [build.rows(together, queries + E), build.constant([queries, E])], {"axis": 1}, [query, row])
        if block.between:
            read_instead(block.query.output, build.positions(query, queries))
        elif sizes.one_softmax:
            share_query(block, query)
        if others_read_queries and cached.behind:
            wider = cached.wider_queries(build, build.reshape(query, [-1, sizes.H, sizes.K]))
            query = build.reshape(wider, [-1, sizes.H * width])
        keys, keys_out = caches.cache(layer, "key", sizes.G, width)
        outputs, last = [keys_out], []
        if cached.norm is not None:
            query = build.rows(before_rotation(block), queries)
            scales, scales_out = caches.cache(layer, "scale", sizes.G, 1)
            last, outputs = [cached.scales(build, row, sizes.G), scales], [keys_out, scales_out]
            row = cached.cached(build, row)
        query, row = caches.newest(block, query, width, row, E)
        attended = caches.attend("BeamLatentAttention", layer, [query, row, keys], outputs, E, KEYS, True, last)
        values = cached.values(build, block, attended, sizes)
        block.replace_with(build.positions(values, sizes.H * sizes.V))
    caches.finish()
    return PassResult(NAME, len(caches.blocks), bytes_saved=generated_saved(GENERATED_K, len(caches.blocks), sizes))


def _attention(sizes: Sizes, r: int) -> AttentionCost:
    """Values for each query head; the canonical step projects them once a key head. And the r numbers of the row."""
    cost = AttentionCost.over_keys(sizes, "BeamLatentAttention of keys", r)
    return replace(cost, by_row=cost.by_row + (sizes.D * r - sizes.D * sizes.V * sizes.G) // sizes.H)


GENERATED_K = GeneratedKind(
    name="k",
    self_pass=self_keys,
    prefixes=(VALUES, KEYS, INPUTS),
    numbers=lambda sizes: sizes.key_numbers,
    attention=_attention,
    one_matrix=over_keys,
    safer="x",
    inverts=True,
    key_forms=True,
    refusal=lambda sizes: refuse_narrow_keys(sizes, sizes.D),
)
