"""Generated cache ``kv`` that never moves: BeamAttention reads it through the beams' ancestry (FastSeq, section 4.1).

Needs: self-attentions over ``past.<l>.key`` and ``past.<l>.value``, whose projections read one tensor. Each new row
is written once into a buffer of fixed size, and a beam update moves only ``ancestry``. Same 2 L M T E numbers as the
naive cache, without the second copy of them that every reordering makes; where the operator runs as its function, it
gathers the history of one layer at a time instead. Query, key and value are projected in one product.
Operator: ``plugins/beam_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.caches.generated._self_attention import SelfAttentionCaches, generated_saved
from tightbeam.graph_passes.caches.prompt._prefix import VALUES
from tightbeam.graph_passes.caches.source._cross_attention import replace
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "self_beam_cache"


def self_beam_cache(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Decoder: inputs ``cache.<l>.key`` [R, G, T_max, K] and ``cache.<l>.value`` [R, G, T_max, V]."""
    sizes = graphs.sizes
    own = SelfAttentionCaches(graphs, NAME, layers)
    build = own.build
    for layer, block in own.blocks.items():
        projected = own.projected(block)
        keys, keys_out = own.cache(layer, "key", sizes.G, sizes.K)
        values, values_out = own.cache(layer, "value", sizes.G, sizes.V)
        given, made = [projected, keys, values], [keys_out, values_out]
        attended = own.attend("BeamAttention", layer, given, made, sizes.V, VALUES)
        replace(block, build.positions(attended, sizes.H * sizes.V))
    own.finish()
    return PassResult(NAME, len(own.blocks), bytes_saved=generated_saved("kv", len(own.blocks), sizes))
