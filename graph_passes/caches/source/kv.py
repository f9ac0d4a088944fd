"""Source cache ``kv``: keys and values of every layer once a sample, shared by its beams (FastSeq, section 4.1).

    decoder: S - MatMul W_K - K -                      encoder: S - MatMul W_K - source.<l>.key [B, G, N, K]
             S - MatMul W_V - V - Attention      ->             S - MatMul W_V - source.<l>.value [B, G, N, V]
                                                       decoder: Q - SourceAttention(source.<l>.key, source.<l>.value)

Needs: cross-attentions over ``encoder_hidden_states``. Cache: L N (E + G V) numbers a sample, M times less than
``kv-per-beam``. Operator: ``plugins/ops/source_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.attention import cross_attention
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.caches.bytes import source_saved
from tightbeam.graph_passes.caches.source._cross_attention import drop_encoder_states, project_in_encoder, source_tensor
from tightbeam.graph_passes.caches.source_inputs import sample_flags
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "cross_shared"


def cross_shared(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Make ``source.<l>.key`` [B, G, N, K] and ``.value`` [B, G, N, V] outputs of the encoder."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, NAME, layers)
    build = Builder(graphs.decoder, NAME)
    flags = sample_flags(graphs, build)
    for layer, block in blocks.items():
        key, value = project_in_encoder(graphs, block, layer)
        sources = [
            source_tensor(graphs, key, f"source.{layer}.key", ["B", sizes.G, "N", sizes.K]),
            source_tensor(graphs, value, f"source.{layer}.value", ["B", sizes.G, "N", sizes.V]),
        ]
        query = build.rows(block.query.output, sizes.H * sizes.K)
        attended = build.variable(f"attended_{layer}", [sizes.rows, sizes.H * sizes.V])
        build.operator("SourceAttention", [query, *sources, flags], block.attributes, [attended])
        block.replace_with(build.positions(attended, sizes.H * sizes.V))
    drop_encoder_states(graphs)
    return PassResult(NAME, len(blocks), bytes_saved=source_saved("kv", len(blocks), sizes))
