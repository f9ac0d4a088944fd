"""Generated cache ``kv``: keys and values that never move, read through the beams' ancestry (FastSeq, section 4.1).

    past.<l>.key, past.<l>.value - Concat - Attention
    ->  BeamAttention(new query, key, value, cache.<l>.key, cache.<l>.value [R, G, T_max, .], ancestry, lengths)

Each new row is written once into a buffer of fixed capacity, and a beam update moves ``ancestry`` alone (elsewhere
``cache_indirection``). Query, key and value are one product. If the operator runs as its function body, that gathers
the rows of one layer at a time.

Needs: self-attentions over ``past.<l>.key`` and ``past.<l>.value``, whose projections read one tensor. Cache:
L M T (E + G V) numbers a sample; saves the second copy that every reordering makes. Operator:
``plugins/ops/beam_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.caches.bytes import generated_saved
from tightbeam.graph_passes.caches.generated._self_attention import SelfAttentionCaches
from tightbeam.graph_passes.caches.kind import AttentionCost, GeneratedKind
from tightbeam.graph_passes.caches.prefix import INPUTS, KEYS, VALUES
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "self_beam_cache"


def self_beam_cache(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Cache ``cache.<l>.key`` [R, G, T_max, K] and ``cache.<l>.value`` [R, G, T_max, V]."""
    sizes = graphs.sizes
    caches = SelfAttentionCaches(graphs, NAME, layers)
    build = caches.build
    for layer, block in caches.blocks.items():
        projected = caches.projected(block)
        keys, keys_out = caches.cache(layer, "key", sizes.G, sizes.K)
        values, values_out = caches.cache(layer, "value", sizes.G, sizes.V)
        inputs, outputs = [projected, keys, values], [keys_out, values_out]
        attended = caches.attend("BeamAttention", layer, inputs, outputs, sizes.V, VALUES)
        block.replace_with(build.positions(attended, sizes.H * sizes.V))
    caches.finish()
    return PassResult(NAME, len(caches.blocks), bytes_saved=generated_saved(GENERATED_KV, len(caches.blocks), sizes))


GENERATED_KV = GeneratedKind(
    name="kv",
    self_pass=self_beam_cache,
    prefixes=(VALUES, KEYS, INPUTS),
    numbers=lambda sizes: sizes.key_value_numbers,
    scales=lambda sizes: 2 * sizes.G,
    attention=lambda sizes, r: AttentionCost(sizes.key_value_numbers, sizes.K + sizes.V, operator="BeamAttention"),
)
