"""Source cache ``states``: the encoder output itself, once a sample and for all layers (EL-attention, section 3.1).

scores_i = (q_i W_K,i^T) S^T and out = sum_i (P_i S) W_V,i W_O,i: keys and values are never formed, and the M x H
queries of a sample multiply one matrix S [N, D]. Needs: cross-attentions over ``encoder_hidden_states`` whose key and
value biases are folded (``fold_biases``). 2 L M times smaller than ``kv-per-beam`` where D = E: N D numbers a sample,
whatever the number of layers. Operator: ``plugins/latent_attention``. Algebra: ``key_algebra``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.attention import cross_attention
from tightbeam.graph_passes.builder import Builder, tidy
from tightbeam.graph_passes.caches.algebra import key_heads, value_heads
from tightbeam.graph_passes.caches.cached_keys import require_own_space
from tightbeam.graph_passes.caches.source._cross_attention import STATES, attend_states, flags_per_sample, source_saved
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "cross_latent"


def cross_latent(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """The decoder keeps ``encoder_hidden_states``, now [B, N, D], and reads it through LatentAttention."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, NAME, layers)
    require_own_space(blocks, NAME)
    build = Builder(graphs.decoder, NAME)
    states = next(tensor for tensor in graphs.decoder.inputs if tensor.name == STATES)
    states.shape = ["B", "N", sizes.D]
    flags = flags_per_sample(graphs, build)
    for layer, block in blocks.items():
        W_K = key_heads(block.key.weight.values, sizes.H, sizes.K)  # [H, K, D]
        W_V = value_heads(block.value.weight.values, sizes.H, sizes.V)  # [H, D, V]
        attend_states(build, block, f"attended_{layer}", states, flags, W_K, W_V, sizes.rows)
    tidy(graphs.decoder)
    return PassResult(NAME, len(blocks), bytes_saved=source_saved("states", len(blocks), sizes))
