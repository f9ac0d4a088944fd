"""Source cache ``kv-per-beam``: keys and values of every layer, once for each beam, as ``model.generate`` holds them.

    decoder: S - MatMul W_K - K -                      encoder: S - MatMul W_K - Expand(num_beams) - source.<l>.key
             S - MatMul W_V - V - Attention      ->             S - MatMul W_V - Expand(num_beams) - source.<l>.value
                                                       decoder: Attention(Q, source.<l>.key, source.<l>.value, mask)

Decoder-only, over the prompt:

    prompt graph: source.<l>.key [B, G, N, K]          ->    Expand(num_beams) - source.<l>.key [R, G, N, K]
    decoder: Attention(Q, past + new K, past + new V)  ->    Attention(Q, source + past + new K, ..., mask)

Kept for comparison; in a decoder-only model it goes with ``kv-reordered`` alone. The beams of a sample hold equal
copies, so nothing is reordered between steps. Cache: L M N (E + G V) numbers a sample; saves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import cross_attention, self_attention
from tightbeam.graph_passes.builder import Builder, graph_input
from tightbeam.graph_passes.caches.key_bias import KeyBias
from tightbeam.graph_passes.caches.kind import AttentionCost, SourceKind
from tightbeam.graph_passes.caches.prefix import CONCATENATED
from tightbeam.graph_passes.caches.source._cross_attention import drop_encoder_states, project_in_encoder, source_tensor
from tightbeam.graph_passes.caches.source_inputs import PromptFlags, beam_flags, repeat_for_beams
from tightbeam.graph_passes.model import ModelGraphs, PassResult

CROSS_NAME, PROMPT_NAME = "cross_per_beam", "prompt_per_beam"


def cross_per_beam(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Give the encoder an input ``num_beams`` int64 [1], and outputs ``source.<l>.key``, ``.value`` [R, G, N, K]."""
    sizes = graphs.sizes
    blocks = cross_attention(graphs, CROSS_NAME, layers)
    num_beams = graph_input(graphs.encoder, "num_beams", np.int64, [1])
    encoder, decoder = Builder(graphs.encoder, CROSS_NAME), Builder(graphs.decoder, CROSS_NAME)
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
    return PassResult(CROSS_NAME, len(blocks))


def prompt_per_beam(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Give the prompt graph an input ``num_beams`` int64 [1], and make its outputs [R, G, N, K]."""
    sizes = graphs.sizes
    blocks = self_attention(graphs, PROMPT_NAME, layers)
    num_beams = graph_input(graphs.encoder, "num_beams", np.int64, [1])
    encoder, decoder = Builder(graphs.encoder, PROMPT_NAME), Builder(graphs.decoder, PROMPT_NAME)
    flags = PromptFlags(graphs, decoder)
    masks: dict[int, gs.Tensor] = {}
    bias = KeyBias(graphs, decoder)
    for layer, block in blocks.items():
        for index, (part, width) in enumerate((("key", sizes.K), ("value", sizes.V)), start=1):
            name = f"source.{layer}.{part}"
            _repeat_output(graphs, encoder, name, num_beams, width)
            source = graph_input(graphs.decoder, name, np.float32, ["R", sizes.G, "N", width])
            block.node.inputs[index] = decoder.add("Concat", [source, block.node.inputs[index]], {"axis": 2})
        window = graphs.window(layer)
        if window not in masks:
            masks[window] = _mask(graphs, decoder, flags.of(layer), block.node.inputs[1], window, bias)
        block.node.inputs.append(masks[window])
    return PassResult(PROMPT_NAME, len(blocks))


def _repeat_output(graphs: ModelGraphs, build: Builder, name: str, num_beams: gs.Tensor, width: int) -> None:
    outputs = graphs.encoder.outputs
    index = next(index for index, tensor in enumerate(outputs) if tensor.name == name)
    outputs[index].name = f"{name}.once"
    rows = repeat_for_beams(build, outputs[index], num_beams)
    rows.name, rows.dtype, rows.shape = name, np.dtype(np.float32), ["R", graphs.sizes.G, "N", width]
    outputs[index] = rows


def _mask(
    graphs: ModelGraphs, build: Builder, flags: gs.Tensor, keys: gs.Tensor, window: int, bias: KeyBias
) -> gs.Tensor:
    """Positions of ``keys`` [R, G, N + T + 1, K] that the newest token attends to, bool [R, 1, 1, N + T + 1].

    In a model with biases by position: the biases that the scores get, float32 [R, H, 1, N + T + 1]. ``flags`` [B, N]
    are the prompt's mask.
    """
    tokens = next(tensor for tensor in graphs.decoder.inputs if tensor.name == "tokens")
    rows = build.add("Shape", [tokens], {"start": 0, "end": 1})
    samples = build.add("Shape", [flags], {"start": 0, "end": 1})
    N = build.add("Shape", [flags], {"start": 1, "end": 2})
    count = build.add("Shape", [keys], {"start": 2, "end": 3})
    beams = build.add("Div", [rows, samples])
    by_beam = build.add("Unsqueeze", [flags, build.constant([1])])  # [B, 1, N]
    by_beam = build.add("Expand", [by_beam, build.add("Concat", [samples, beams, N], {"axis": 0})])
    prompt = build.add("Reshape", [by_beam, build.add("Concat", [rows, N], {"axis": 0})])  # [R, N]
    own = build.add("Sub", [count, N])
    if window:
        ages = build.add("Range", [build.add("Squeeze", [own]), build.constant(0), build.constant(-1)])  # T + 1 .. 1
        seen = build.add("LessOrEqual", [ages, build.constant(window)])
        generated = build.add("Expand", [seen, build.add("Concat", [rows, own], {"axis": 0})])
    else:
        ones = build.add("ConstantOfShape", [build.add("Concat", [rows, own], {"axis": 0})])  # of zeros
        generated = build.add("Not", [build.add("Cast", [ones], {"to": 9})])
    mask = build.add("Concat", [prompt, generated], {"axis": 1})
    seen = build.add("Unsqueeze", [mask, build.constant([1, 2])])
    if graphs.key_bias is None:
        return seen
    return build.add("Where", [seen, bias.of_all(N, own), build.constant(-np.inf, np.float32)])


SOURCE_KV_PER_BEAM = SourceKind(
    name="kv-per-beam",
    cross_pass=cross_per_beam,
    prompt_pass=prompt_per_beam,
    prefix=CONCATENATED,
    numbers=lambda sizes, layers: layers * sizes.key_value_numbers,
    per_beam=True,
    projected=lambda sizes, layers: layers * sizes.source_D * sizes.key_value_numbers,
    attention=lambda sizes, r: AttentionCost(sizes.key_value_numbers, sizes.K + sizes.V),
)
