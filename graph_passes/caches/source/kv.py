"""Source cache ``kv``: keys and values of every layer once a sample, shared by its beams (FastSeq, section 4.1).

    decoder: S - MatMul W_K - K -                      encoder: S - MatMul W_K - source.<l>.key [B, G, N, K]
             S - MatMul W_V - V - Attention      ->             S - MatMul W_V - source.<l>.value [B, G, N, V]
                                                       decoder: Q - SourceAttention(source.<l>.key, source.<l>.value)

Decoder-only, over the prompt:

    Attention(Q, past + new K, past + new V)
    ->  Q - SourceAttention(source.<l>.key, source.<l>.value, flags) -> prefix output, prefix lse - self-attention's
        operator

A prompt's keys are cached as the scores read them, after rotation. Cache: L N (E + G V) numbers a sample, M times less
than ``kv-per-beam``. Operator: ``plugins/ops/source_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightbeam.graph_passes.attention import cross_attention, self_attention
from tightbeam.graph_passes.builder import Builder, graph_input
from tightbeam.graph_passes.caches.bytes import source_saved
from tightbeam.graph_passes.caches.key_bias import KeyBias
from tightbeam.graph_passes.caches.kind import AttentionCost, SourceKind
from tightbeam.graph_passes.caches.prefix import VALUES, query_rows, set_prefix
from tightbeam.graph_passes.caches.source._cross_attention import drop_encoder_states, project_in_encoder, source_tensor
from tightbeam.graph_passes.caches.source_inputs import PromptFlags, sample_flags
from tightbeam.graph_passes.model import ModelGraphs, PassResult

CROSS_NAME, PROMPT_NAME = "cross_shared", "prompt_shared"


def cross_shared(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Make ``source.<l>.key`` [B, G, N, K] and ``.value`` [B, G, N, V] outputs of the encoder."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, CROSS_NAME, layers)
    build = Builder(graphs.decoder, CROSS_NAME)
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
    return PassResult(CROSS_NAME, len(blocks), bytes_saved=source_saved(SOURCE_KV, len(blocks), sizes))


def prompt_shared(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Cache ``source.<l>.key`` [B, G, N, K] and ``.value`` [B, G, N, V], outputs of the prompt graph."""
    sizes = graphs.sizes
    blocks = self_attention(graphs, PROMPT_NAME, layers)
    build = Builder(graphs.decoder, PROMPT_NAME)
    flags, bias = PromptFlags(graphs, build), KeyBias(graphs, build)
    for layer, block in blocks.items():
        widths = {"key": sizes.K, "value": sizes.V}
        sources = [
            graph_input(graphs.decoder, f"source.{layer}.{part}", np.float32, ["B", sizes.G, "N", width])
            for part, width in widths.items()
        ]
        attended = build.variable(f"attended_{layer}", ["R", sizes.H * sizes.V])
        lse = build.variable(f"lse_{layer}", ["R", sizes.H])
        inputs = [query_rows(build, block, sizes), *sources, flags.of(layer), *bias.table()]
        build.operator("SourceAttention", inputs, block.attributes, [attended, lse])
        set_prefix(block, VALUES, attended, lse)
    return PassResult(PROMPT_NAME, len(blocks), bytes_saved=source_saved(SOURCE_KV, len(blocks), sizes))


SOURCE_KV = SourceKind(
    name="kv",
    cross_pass=cross_shared,
    prompt_pass=prompt_shared,
    prefix=VALUES,
    numbers=lambda sizes, layers: layers * sizes.key_value_numbers,
    scales=lambda sizes, layers: layers * 2 * sizes.G,
    projected=lambda sizes, layers: layers * sizes.source_D * sizes.key_value_numbers,
    attention=lambda sizes, r: AttentionCost(
        sizes.key_value_numbers, sizes.K + sizes.V, operator="SourceAttention", int8_rate="source_rate"
    ),
)
