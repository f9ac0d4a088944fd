"""Source cache ``kv-per-beam``: keys and values of every layer, once for each beam (what model.generate holds).

Kept for honest comparison. Needs: cross-attentions over ``encoder_hidden_states``. The encoder projects keys and
values once a sample and repeats them M times; the decoder attends row by row. The beams of a sample hold equal copies,
so they are not reordered between steps. Saves nothing: 2 L M N E numbers a sample.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tightbeam.graph_passes.attention import cross_attention
from tightbeam.graph_passes.builder import Builder, graph_input
from tightbeam.graph_passes.caches.source._cross_attention import (
    drop_encoder_states,
    mask_per_beam,
    project_in_encoder,
    repeat_for_beams,
    replace,
    source_tensor,
)
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "cross_per_beam"


def cross_per_beam(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Encoder: a new input ``num_beams`` int64 [1]; outputs ``source.<l>.key`` and ``.value`` [R, G, N, K]."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, NAME, layers)
    num_beams = graph_input(graphs.encoder, "num_beams", np.int64, [1])
    encoder, decoder = Builder(graphs.encoder, NAME), Builder(graphs.decoder, NAME)
    mask, _ = mask_per_beam(graphs, decoder)
    source = decoder.add("Shape", [mask], {"start": 2})
    row_shape = decoder.add("Concat", [decoder.constant([-1, 1, 1]), source], {"axis": 0})
    mask = decoder.add("Reshape", [mask, row_shape])  # [R, 1, 1, N]
    if sizes.streams > 1:  # ONNX Runtime's Attention wants the query axis in full
        mask = decoder.add("Expand", [mask, decoder.constant([1, 1, sizes.streams, 1])])
    for layer, block in blocks.items():
        sources = []
        widths = {"key": sizes.K, "value": sizes.V}
        for tensor, (part, width) in zip(project_in_encoder(graphs, block, layer), widths.items(), strict=True):
            rows = repeat_for_beams(encoder, tensor, num_beams)  # [R, G, N, K]
            sources.append(source_tensor(graphs, rows, f"source.{layer}.{part}", ["R", sizes.G, "N", width]))
        attended = decoder.add("Attention", [block.node.inputs[0], *sources, mask], {"scale": block.scale})
        attended = decoder.transpose(attended, [0, 2, 1, 3])  # [R, streams, H, V]
        replace(block, decoder.reshape(attended, [-1, 1, sizes.H * sizes.V]))
    drop_encoder_states(graphs)
    return PassResult(NAME, len(blocks))
