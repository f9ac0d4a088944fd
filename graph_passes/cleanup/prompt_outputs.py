"""Cut the prompt graph down to the caches that the decoder reads.

    x - MatMul W_Q, MatMul W_K, MatMul W_V    ->    x - MatMul [W_Q W_K W_V] - Split
    outputs that the decoder does not read    ->    removed, with the last layer's attention and everything behind it

Queries, keys and values that the decoder projects in one product are projected in one here too, so that both graphs
share the weight. Needs: a model with one softmax over source and output, after the passes of its caches. Saves the last
layer's attention and feed-forward part while the prompt is read.
"""

from __future__ import annotations

from tightbeam.graph_passes.attention import SELF, project_together, prompt_attention
from tightbeam.graph_passes.builder import Builder, read_instead, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "prompt_outputs"


def prompt_outputs(graphs: ModelGraphs) -> PassResult:
    """Remove outputs of the prompt graph that are not decoder inputs, in place."""
    encoder, decoder = graphs.encoder, graphs.decoder
    build = Builder(encoder, NAME)
    for layer in _projected_together(graphs):
        (block,) = prompt_attention(graphs, NAME, [layer]).values()
        parts = (block.query, block.key, block.value)
        widths = [part.weight.shape[1] for part in parts]
        together = project_together(build, parts, block.node.name)
        pieces = [build.variable(f"part_{layer}.{i}", ["B", "N", width]) for i, width in enumerate(widths)]
        build.add("Split", [together, build.constant(widths)], {"axis": 2}, pieces)
        for part, piece in zip(parts, pieces, strict=True):
            read_instead(part.output, piece)
    needed = {tensor.name for tensor in decoder.inputs}
    gone = [tensor for tensor in encoder.outputs if tensor.name not in needed]
    encoder.outputs = [tensor for tensor in encoder.outputs if tensor.name in needed]
    tidy(encoder)
    return PassResult(NAME, len(gone))


def _projected_together(graphs: ModelGraphs) -> list[int]:
    """Layers whose projections are one product in the decoder, and not outputs of the prompt graph."""
    outputs = {tensor.name for tensor in graphs.encoder.outputs}
    as_traced = {node.name for node in graphs.decoder.nodes if node.op == "Attention"}
    layers: list[int] = []
    if not graphs.sizes.decoder_only:
        return layers
    for layer, block in prompt_attention(graphs, NAME).items():
        made = {part.output.name for part in (block.query, block.key, block.value)}
        if not block.between and not made & outputs and f"{SELF}.{layer}" not in as_traced:
            layers.append(layer)
    return layers
