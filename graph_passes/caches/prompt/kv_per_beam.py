"""Prompt cache ``kv-per-beam``: the prompt's keys and values, once for each beam, as ``model.generate`` holds them.

    prompt graph: source.<l>.key [B, G, N, K]          ->    Expand(num_beams) - source.<l>.key [R, G, N, K]
    decoder: Attention(Q, past + new K, past + new V)  ->    Attention(Q, source + past + new K, ..., mask)

Kept for comparison; goes with ``kv-reordered`` alone. Needs: self-attentions over ``past.<l>.key`` and
``past.<l>.value``. The beams of a sample hold equal copies, so the prompt is not reordered between steps. Cache:
L M N (E + G V) numbers a sample; saves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import self_attention
from tightbeam.graph_passes.builder import Builder, graph_input
from tightbeam.graph_passes.caches.key_bias import KeyBias
from tightbeam.graph_passes.caches.source_inputs import PromptFlags, repeat_for_beams
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "prompt_per_beam"


def prompt_per_beam(graphs: ModelGraphs, layers: Sequence[int] | None = None) -> PassResult:
    """Give the prompt graph an input ``num_beams`` int64 [1], and make its outputs [R, G, N, K]."""
    sizes = graphs.sizes
    blocks = self_attention(graphs, NAME, layers)
    num_beams = graph_input(graphs.encoder, "num_beams", np.int64, [1])
    encoder, decoder = Builder(graphs.encoder, NAME), Builder(graphs.decoder, NAME)
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
    return PassResult(NAME, len(blocks))


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
    """Positions of ``keys`` [R, G, N + T + 1, K] that the newest token attends to, bool [R, 1, 1, N + T + 1]; where the
    model has biases by position, what is added to the scores, float32 [R, H, 1, N + T + 1].

    ``flags`` [B, N] are those of the prompt.
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
