"""Prompt cache ``kv``: keys and values of every layer once a sample, shared by its beams (FastSeq, section 4.1).

    Attention(Q, past + new K, past + new V)
    ->  Q - SourceAttention(source.<l>.key, source.<l>.value, flags) -> prefix output, prefix lse - self-attention's
        operator

Keys are cached as the scores read them, after rotation. Needs: self-attentions over ``past.<l>.key`` and
``past.<l>.value``. Cache: L N (E + G V) numbers a sample, M times less than ``kv-per-beam``.
Operator: ``plugins/ops/source_attention``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightbeam.graph_passes.attention import self_attention
from tightbeam.graph_passes.builder import Builder, graph_input
from tightbeam.graph_passes.caches.bytes import source_saved
from tightbeam.graph_passes.caches.key_bias import KeyBias
from tightbeam.graph_passes.caches.prompt._prefix import VALUES, query_rows, set_prefix
from tightbeam.graph_passes.caches.source_inputs import PromptFlags
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "prompt_shared"


def prompt_shared(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Cache ``source.<l>.key`` [B, G, N, K] and ``.value`` [B, G, N, V], outputs of the prompt graph."""
    sizes = graphs.sizes
    blocks = self_attention(graphs, NAME, layers)
    build = Builder(graphs.decoder, NAME)
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
    return PassResult(NAME, len(blocks), bytes_saved=source_saved("kv", len(blocks), sizes))
