"""Generated cache ``x``: the inputs of each layer's attention, in place of keys and values (Slim attention, X-cache).

EL-attention's algebra over x: scores_i = (q_i W_K,i^T) x^T and out_i = (P_i x) W_V,i. Needs: self-attentions over
``past.<l>.key`` and ``past.<l>.value``, whose projections read one tensor and whose key and value biases are folded
(``fold_biases``). L M T D numbers: half of ``kv`` where the key heads are together as wide as the model, less where
they are wider. Well-conditioned whatever the weights are. Operator: ``plugins/beam_latent_attention``.
Algebra: ``key_algebra``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.caches.algebra import key_heads, multiply_heads, value_heads
from tightbeam.graph_passes.caches.cached_keys import require_own_space
from tightbeam.graph_passes.caches.generated._self_attention import SelfAttentionCaches, generated_saved
from tightbeam.graph_passes.caches.prompt._prefix import INPUTS
from tightbeam.graph_passes.caches.source._cross_attention import replace
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "self_inputs"


def self_inputs(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Decoder: inputs ``cache.<l>.input`` [R, 1, T_max, D]."""
    sizes = graphs.sizes
    own = SelfAttentionCaches(graphs, NAME, layers)
    require_own_space(own.blocks, NAME)
    build = own.build
    for layer, block in own.blocks.items():
        dtype = block.key.weight.dtype
        W_K = key_heads(block.key.weight.values, sizes.H, sizes.K)  # [H, K, D]
        W_V = value_heads(block.value.weight.values, sizes.H, sizes.V)  # [H, D, V]
        by_head = multiply_heads(build, block.query.output, W_K, dtype)  # [R, H, D]
        query = build.reshape(by_head, [-1, sizes.H * sizes.D])
        row = build.rows(block.key.source, sizes.D)
        inputs, inputs_out = own.cache(layer, "input", 1, sizes.D)
        query, row = own.newest(block, query, sizes.D, row, sizes.D)
        attended = own.attend("BeamLatentAttention", layer, [query, row, inputs], [inputs_out], sizes.D, INPUTS)
        values = multiply_heads(build, attended, W_V, dtype)
        replace(block, build.positions(values, sizes.H * sizes.V))
    own.finish()
    return PassResult(NAME, len(own.blocks), bytes_saved=generated_saved("x", len(own.blocks), sizes))
