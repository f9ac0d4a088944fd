"""Generated cache ``kv`` that never moves: BeamAttention reads it through the beams' ancestry (FastSeq, section 4.1).

Needs: L self-attentions over ``past.<l>.key`` and ``past.<l>.value``, whose projections read one tensor. Each new row
is written once into a buffer of fixed size, and a beam update moves only ``ancestry``. Same 2 L M T E numbers as the
naive cache, without the second copy of them that every reordering makes; where the operator runs as its function, it
gathers the history of one layer at a time instead. Query, key and value are projected in one product.
Operator: ``plugins/beam_attention``.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.base import (
    AttentionBlock,
    Builder,
    CacheState,
    ModelGraphs,
    PassError,
    PassResult,
    graph_input,
    remove_inputs,
    self_attention,
    tidy,
)
from tightbeam.graph_passes.cache_bytes import generated_bytes
from tightbeam.graph_passes.cross_attention import replace

NAME = "self_beam_cache"


def self_beam_cache(graphs: ModelGraphs) -> PassResult:
    """Decoder: inputs ``ancestry`` int32 [B, M, T], ``lengths`` int32 [B] and ``cache.<l>.key`` and ``.value``
    [R, G, T_max, K], each followed by an output ``cache_out.<l>.<part>`` that belongs in the same buffer."""
    sizes = graphs.sizes
    decoder = graphs.decoder
    blocks = self_attention(graphs, NAME)
    ancestry = graph_input(decoder, "ancestry", np.int32, ["B", "M", "T"])
    lengths = graph_input(decoder, "lengths", np.int32, ["B"])
    build = Builder(decoder, NAME)
    states = []
    past_names = []
    kept = [tensor for tensor in decoder.outputs if not tensor.name.startswith("present.")]
    for layer, block in enumerate(blocks):
        assert block.past is not None
        past_names += [past.name for past in block.past]
        projected = build.rows(_project_together(build, block), sizes.H * sizes.K + sizes.G * (sizes.K + sizes.V))
        caches, written = [], []
        for part, width in (("key", sizes.K), ("value", sizes.V)):
            state = CacheState(
                f"cache.{layer}.{part}", f"cache_out.{layer}.{part}", "in_place", ("R", sizes.G, "T_max", width)
            )
            states.append(state)
            dtype = np.dtype(np.float32)
            caches.append(graph_input(decoder, state.input, dtype, state.shape))
            written.append(gs.Variable(state.output, dtype=dtype, shape=list(state.shape)))
        kept += written
        attended = build.variable(f"attended_{layer}", ["R", sizes.H * sizes.V])
        build.operator(
            "BeamAttention",
            [projected, *caches, ancestry, lengths],
            {"scale": block.scale, "window": 0},
            [attended, *written],
        )
        replace(block, build.positions(attended, sizes.H * sizes.V))
    decoder.outputs = kept
    tidy(decoder)
    for state, name in zip(states, past_names, strict=True):
        _read_sizes_of_cache(decoder, name, state.input)
    remove_inputs(decoder, past_names)
    graphs.states = tuple(states)
    return PassResult(NAME, len(blocks), bytes_saved=lambda job: generated_bytes("kv", sizes, job))


def _project_together(build: Builder, block: AttentionBlock) -> gs.Tensor:
    """[R, 1, H K + G K + G V]: query, key and value side by side, out of one product."""
    parts = (block.query, block.key, block.value)
    if any(part.source is not parts[0].source for part in parts):
        raise PassError(f"{NAME}: query, key and value of {block.node.name} are projected from different tensors")
    dtype = parts[0].weight.dtype
    weight = np.concatenate([part.weight.values for part in parts], axis=1)
    together = build.add("MatMul", [parts[0].source, build.constant(weight, dtype)])
    if all(part.bias is None for part in parts):
        return together
    widths = [part.weight.shape[1] for part in parts]
    biases = [
        np.zeros(width, dtype) if part.bias is None else part.bias.values.reshape(-1)
        for part, width in zip(parts, widths, strict=True)
    ]
    return build.add("Add", [together, build.constant(np.concatenate(biases), dtype)])


def _read_sizes_of_cache(decoder: gs.Graph, past_name: str, cache_name: str) -> None:
    """What is left of a past are reads of its sizes, which the cache has too, all but the length."""
    inputs = {tensor.name: tensor for tensor in decoder.inputs}
    for node in list(inputs[past_name].outputs):
        start, end = node.attrs.get("start", 0), node.attrs.get("end", 4)
        if node.op != "Shape" or start <= 2 < end:
            raise PassError(f"{NAME}: {node.op} {node.name} reads {past_name} beside its attention")
        node.inputs = [inputs[cache_name]]
