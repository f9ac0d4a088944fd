"""Source cache ``kv``: keys and values of every layer once a sample, shared by its beams (FastSeq, section 4.1).

Needs: cross-attentions over ``encoder_hidden_states``. The encoder projects keys and values; the decoder reads them
once for all beams of a sample. M times smaller than ``kv-per-beam``: 2 L N E numbers a sample.
Operator: ``plugins/source_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightbeam.graph_passes.attention import cross_attention
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.caches.source._cross_attention import (
    drop_encoder_states,
    flags_per_sample,
    project_in_encoder,
    replace,
    source_saved,
    source_tensor,
)
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "cross_shared"


def cross_shared(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Encoder outputs ``source.<l>.key`` [B, G, N, K] and ``source.<l>.value`` [B, G, N, V]."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, NAME, layers)
    build = Builder(graphs.decoder, NAME)
    flags = flags_per_sample(graphs, build)
    for layer, block in blocks.items():
        key, value = project_in_encoder(graphs, block, layer)
        sources = [
            source_tensor(graphs, key, f"source.{layer}.key", ["B", sizes.G, "N", sizes.K]),
            source_tensor(graphs, value, f"source.{layer}.value", ["B", sizes.G, "N", sizes.V]),
        ]
        query = build.rows(block.query.output, sizes.H * sizes.K)
        attended = build.variable(f"attended_{layer}", [sizes.rows, sizes.H * sizes.V])
        build.operator("SourceAttention", [query, *sources, flags], {"scale": block.scale}, [attended])
        replace(block, build.positions(attended, sizes.H * sizes.V))
    drop_encoder_states(graphs)
    return PassResult(NAME, len(blocks), bytes_saved=source_saved("kv", len(blocks), sizes))
