"""Generated cache ``k``: keys that never move, and no values (Slim attention, option 2).

The values are a linear function of the keys, V = k W_KV with W_KV = W_K^-1 W_V, applied after the softmax:
out_i = (P_i k) W_KV,i. Needs: self-attentions over ``past.<l>.key`` and ``past.<l>.value``, whose projections read one
tensor, whose key and value biases are folded (``fold_biases``), and whose key heads are together as wide as the model,
E >= D. Half of ``kv``: L M T E numbers. Exact in algebra; how exact in floating point depends on W_K, so an export
measures it. Where positions turn the keys (RoPE), they are kept as they were before, bias included, and turned when
they are read; what a norm of theirs made of them, a number for each head and position, is kept beside them.
Operator: ``plugins/beam_latent_attention``. Algebra: ``key_algebra``.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import read_instead
from tightbeam.graph_passes.caches.algebra import ROTATION
from tightbeam.graph_passes.caches.cached_keys import (
    NORM,
    CachedKeys,
    before_rotation,
    require_own_space,
    require_wide_keys,
)
from tightbeam.graph_passes.caches.generated._self_attention import (
    SelfAttentionCaches,
    generated_saved,
    project_together,
)
from tightbeam.graph_passes.caches.prompt._prefix import KEYS, share_query
from tightbeam.graph_passes.caches.source._cross_attention import replace
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "self_keys"


def self_keys(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Decoder: inputs ``cache.<l>.key`` [R, G, T_max, K], and ``cache.<l>.scale`` [R, G, T_max, 1] with a norm."""
    sizes = graphs.sizes
    queries, E = sizes.H * sizes.K, sizes.G * sizes.K
    own = SelfAttentionCaches(graphs, NAME, layers)
    require_own_space(own.blocks, NAME, (ROTATION, NORM))
    require_wide_keys(own.blocks, NAME)
    build = own.build
    for layer, block in own.blocks.items():
        projected = build.rows(project_together(build, (block.query, block.key), block.node.name), queries + E)
        query, row = gs.Variable(f"{NAME}.query_{layer}"), gs.Variable(f"{NAME}.row_{layer}")
        build.add("Split", [projected, build.constant([queries, E])], {"axis": 1}, [query, row])
        if block.between:
            read_instead(block.query.output, build.positions(query, queries))
        elif sizes.decoder_only:
            share_query(block, query)
        keys, keys_out = own.cache(layer, "key", sizes.G, sizes.K)
        kept, made, last = CachedKeys.of(block), [keys_out], []
        if kept.norm is not None:
            query = build.rows(before_rotation(block), queries)
            scales, scales_out = own.cache(layer, "scale", sizes.G, 1)
            last, made = [kept.scales(build, row, sizes.G), scales], [keys_out, scales_out]
            row = kept.kept(build, row)
        query, row = own.newest(block, query, sizes.K, row, E)
        attended = own.attend("BeamLatentAttention", layer, [query, row, keys], made, E, KEYS, True, last)
        values = kept.values(build, block, attended, sizes)
        replace(block, build.positions(values, sizes.H * sizes.V))
    own.finish()
    return PassResult(NAME, len(own.blocks), bytes_saved=generated_saved("k", len(own.blocks), sizes))
