"""Source cache ``states``: the encoder's output itself, once a sample and for all layers (EL-attention, section 3.1).

    S - MatMul W_K,l - K -
    S - MatMul W_V,l - V - Attention(Q, K, V)    ->    Q - MatMul W_K,i^T - LatentAttention(., S) - MatMul W_V,i

Weight absorption: keys and values are never formed, and the M x H queries of a sample multiply one matrix S [N, D].
Needs: cross-attentions over ``encoder_hidden_states`` whose key and value biases are folded (``fold_biases``). Cache:
N D numbers a sample, whatever the number of layers; 2 L M times less than ``kv-per-beam`` where D = E.
Operator: ``plugins/ops/latent_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.attention import cross_attention
from tightbeam.graph_passes.builder import Builder, tidy
from tightbeam.graph_passes.caches.algebra import key_heads, value_heads
from tightbeam.graph_passes.caches.bytes import source_saved
from tightbeam.graph_passes.caches.cached_keys import require_one_source
from tightbeam.graph_passes.caches.source._cross_attention import STATES, attend_states
from tightbeam.graph_passes.caches.source_inputs import sample_flags
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "cross_latent"


def cross_latent(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Make the decoder read ``encoder_hidden_states``, now [B, N, D], through LatentAttention."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, NAME, layers)
    require_one_source(blocks, NAME)
    build = Builder(graphs.decoder, NAME)
    states = next(tensor for tensor in graphs.decoder.inputs if tensor.name == STATES)
    states.shape = ["B", "N", sizes.source_D]
    flags = sample_flags(graphs, build)
    for layer, block in blocks.items():
        W_K = key_heads(block.key.weight.values, sizes.H, sizes.K)  # [H, K, D]
        W_V = value_heads(block.value.weight.values, sizes.H, sizes.V)  # [H, D, V]
        attend_states(build, block, f"attended_{layer}", states, flags, W_K, W_V, sizes.rows)
    tidy(graphs.decoder)
    return PassResult(NAME, len(blocks), bytes_saved=source_saved("states", len(blocks), sizes))
