"""Source cache ``kv-per-beam``: keys and values of every layer, once for each beam, as ``model.generate`` holds them.

    decoder: S - MatMul W_K - K -                      encoder: S - MatMul W_K - Expand(num_beams) - source.<l>.key
             S - MatMul W_V - V - Attention      ->             S - MatMul W_V - Expand(num_beams) - source.<l>.value
                                                       decoder: Attention(Q, source.<l>.key, source.<l>.value, mask)

Kept for comparison. Needs: cross-attentions over ``encoder_hidden_states``. The beams of a sample hold equal copies, so
nothing is reordered between steps. Cache: L M N (E + G V) numbers a sample; saves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightbeam.graph_passes.attention import cross_attention
from tightbeam.graph_passes.builder import Builder, graph_input
from tightbeam.graph_passes.caches.source._cross_attention import drop_encoder_states, project_in_encoder, source_tensor
from tightbeam.graph_passes.caches.source_inputs import beam_flags, repeat_for_beams
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "cross_per_beam"


def cross_per_beam(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Give the encoder an input ``num_beams`` int64 [1], and outputs ``source.<l>.key``, ``.value`` [R, G, N, K]."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, NAME, layers)
    num_beams = graph_input(graphs.encoder, "num_beams", np.int64, [1])
    encoder, decoder = Builder(graphs.encoder, NAME), Builder(graphs.decoder, NAME)
    mask = beam_flags(graphs, decoder)
    source = decoder.add("Shape", [mask], {"start": 2})
    row_shape = decoder.add("Concat", [decoder.constant([-1, 1, 1]), source], {"axis": 0})
    mask = decoder.add("Reshape", [mask, row_shape])  # [R, 1, 1, N]
    if sizes.streams > 1:  # ONNX Runtime's Attention needs the query axis in full
        mask = decoder.add("Expand", [mask, decoder.constant([1, 1, sizes.streams, 1])])
    for layer, block in blocks.items():
        sources = []
        widths = {"key": sizes.K, "value": sizes.V}
        for tensor, (part, width) in zip(project_in_encoder(graphs, block, layer), widths.items(), strict=True):
            rows = repeat_for_beams(encoder, tensor, num_beams)  # [R, G, N, K]
            sources.append(source_tensor(graphs, rows, f"source.{layer}.{part}", ["R", sizes.G, "N", width]))
        attended = decoder.add("Attention", [block.node.inputs[0], *sources, mask], block.attributes)
        attended = decoder.transpose(attended, [0, 2, 1, 3])  # [R, streams, H, V]
        block.replace_with(decoder.reshape(attended, [-1, 1, sizes.H * sizes.V]))
    drop_encoder_states(graphs)
    return PassResult(NAME, len(blocks))
