"""The prompt graph, down to what the decoder reads: the last layer's own attention goes, with all that follows it.

Needs: a decoder-only model whose layers keep what they keep of the prompt. Queries, keys and values of a layer, which
the decoder projects in one product, are projected in one here too, so that both graphs share the weight.
"""

from __future__ import annotations

from tightbeam.graph_passes.base import Builder, ModelGraphs, PassResult, prompt_attention, read_instead, tidy
from tightbeam.graph_passes.own_attention import project_together

NAME = "prompt_outputs"


def prompt_outputs(graphs: ModelGraphs) -> PassResult:
    """Prompt graph: outputs that no decoder input has the name of are gone."""
    encoder, decoder = graphs.encoder, graphs.decoder
    build = Builder(encoder, NAME)
    outputs = {tensor.name for tensor in encoder.outputs}
    for block in prompt_attention(graphs, NAME).values():
        parts = (block.query, block.key, block.value)
        if block.between or any(
            part.output.name in outputs or part.matmul.outputs[0].name in outputs for part in parts
        ):
            continue
        together = project_together(build, parts, block.node.name)
        pieces = [
            build.variable(f"{block.node.name}.{index}", ["B", "N", part.weight.shape[1]])
            for index, part in enumerate(parts)
        ]
        build.add("Split", [together, build.constant([part.weight.shape[1] for part in parts])], {"axis": 2}, pieces)
        for part, piece in zip(parts, pieces, strict=True):
            read_instead(part.output, piece)
    needed = {tensor.name for tensor in decoder.inputs}
    gone = [tensor for tensor in encoder.outputs if tensor.name not in needed]
    encoder.outputs = [tensor for tensor in encoder.outputs if tensor.name in needed]
    tidy(encoder)
    return PassResult(NAME, len(gone))
