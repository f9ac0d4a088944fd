"""Generated cache ``k``: keys that never move, and no values (Slim attention, option 2).

The values are a linear function of the keys, V = k W_KV with W_KV = W_K^-1 W_V, applied after the softmax:
out_i = (P_i k) W_KV,i. Needs: self-attentions over ``past.<l>.key`` and ``past.<l>.value``, whose projections read one
tensor, whose key and value biases are folded (``fold_biases``), and whose key heads are together as wide as the model,
E >= D. Half of ``kv``: L M T E numbers. Exact in algebra; how exact in floating point depends on W_K, so an export
measures it. Where positions turn the keys (RoPE), they are kept as they were before, bias included, and turned when
they are read.
Operator: ``plugins/beam_latent_attention``. Algebra: ``key_algebra``.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_graphsurgeon as gs

from tightbeam.graph_passes.base import ModelGraphs, PassResult, read_instead
from tightbeam.graph_passes.cross_attention import replace
from tightbeam.graph_passes.kept_keys import KeptKeys, require_own_space, require_wide_keys
from tightbeam.graph_passes.key_algebra import ROTATION
from tightbeam.graph_passes.own_attention import OwnCaches, generated_saved, project_together
from tightbeam.graph_passes.prior import KEYS, share_query

NAME = "self_keys"


def self_keys(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Decoder: inputs ``cache.<l>.key`` [R, G, T_max, K]."""
    sizes = graphs.sizes
    queries, E = sizes.H * sizes.K, sizes.G * sizes.K
    own = OwnCaches(graphs, NAME, layers)
    require_own_space(own.blocks, NAME, (ROTATION,))
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
        query, row = own.newest(block, query, sizes.K, row, E)
        given, made = [query, row, keys], [keys_out]
        attended = own.attend("BeamLatentAttention", layer, given, made, E, KEYS, before_rotation=True)
        values = KeptKeys.of(block).values(build, block, attended, sizes)
        replace(block, build.positions(values, sizes.H * sizes.V))
    own.finish()
    return PassResult(NAME, len(own.blocks), bytes_saved=generated_saved("k", len(own.blocks), sizes))
