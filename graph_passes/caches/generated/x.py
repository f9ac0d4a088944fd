"""Generated cache ``x``: the inputs of each layer's attention, in place of keys and values (Slim attention, X-cache).

    past.<l>.key, past.<l>.value - Concat - Attention
    ->  Q - MatMul W_K,i^T - BeamLatentAttention(., x, cache.<l>.input [R, 1, T_max, D], ancestry, lengths)
        - MatMul W_V,i

Weight absorption over the layer's own inputs x. Needs: self-attentions over ``past.<l>.key`` and ``past.<l>.value``,
whose projections read one tensor and whose key and value biases are folded (``fold_biases``), and neither rotation nor
norm between keys and scores. Cache: L M T D numbers a sample, half of ``kv`` if D = E, less if E > D. Well-conditioned
for any weights. Operator: ``plugins/ops/beam_latent_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tightbeam.graph_passes.caches.algebra import key_heads, multiply_heads, over_inputs, value_heads
from tightbeam.graph_passes.caches.bytes import generated_saved
from tightbeam.graph_passes.caches.cached_keys import require_one_source
from tightbeam.graph_passes.caches.generated._self_attention import SelfAttentionCaches
from tightbeam.graph_passes.caches.kind import AttentionCost, GeneratedKind, refuse_changed_keys
from tightbeam.graph_passes.caches.prefix import INPUTS
from tightbeam.graph_passes.model import ModelGraphs, PassResult, Sizes

NAME = "self_inputs"


def self_inputs(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Cache ``cache.<l>.input`` [R, 1, T_max, D]."""
    sizes = graphs.sizes
    caches = SelfAttentionCaches(graphs, NAME, layers)
    require_one_source(caches.blocks, NAME)
    build = caches.build
    for layer, block in caches.blocks.items():
        dtype = block.key.weight.dtype
        W_K = key_heads(block.key.weight.values, sizes.H, sizes.K)  # [H, K, D]
        W_V = value_heads(block.value.weight.values, sizes.H, sizes.V)  # [H, D, V]
        by_head = multiply_heads(build, block.query.output, W_K, dtype)  # [R, H, D]
        query = build.reshape(by_head, [-1, sizes.H * sizes.D])
        row = build.rows(block.key.source, sizes.D)
        inputs, inputs_out = caches.cache(layer, "input", 1, sizes.D)
        query, row = caches.newest(block, query, sizes.D, row, sizes.D)
        attended = caches.attend("BeamLatentAttention", layer, [query, row, inputs], [inputs_out], sizes.D, INPUTS)
        values = multiply_heads(build, attended, W_V, dtype)
        block.replace_with(build.positions(values, sizes.H * sizes.V))
    caches.finish()
    return PassResult(NAME, len(caches.blocks), bytes_saved=generated_saved(GENERATED_X, len(caches.blocks), sizes))


def _attention(sizes: Sizes, r: int) -> AttentionCost:
    """Keys and values for each query head; the canonical step projects them once a key head."""
    by_row = sizes.D * (sizes.K + sizes.V) * (sizes.H - sizes.G) // sizes.H
    return replace(AttentionCost.over_rows(sizes, sizes.D, "BeamLatentAttention of inputs"), by_row=by_row)


GENERATED_X = GeneratedKind(
    name="x",
    self_pass=self_inputs,
    prefixes=(INPUTS,),
    numbers=lambda sizes: sizes.D,
    attention=_attention,
    one_matrix=over_inputs,
    safer="kv",
    refusal=refuse_changed_keys,
)
