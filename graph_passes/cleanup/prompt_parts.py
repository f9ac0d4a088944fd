"""Make a second prompt graph, which encodes a part of a prompt behind positions that are cached already.

    input_ids [B, N] - ... - key   [B, G, N, K] - source.<l>.key        the prompt graph, which stays as it is
                                                - PromptAttention

    input_ids [B, part], starts [B] - ... - key [B, G, part, K] -       the new graph
                  source.<l>.key [B, G, N, K] - TensorScatter - source_out.<l>.key
                                                              - PromptAttention(starts)

Bind ``source.<l>.key`` and ``source_out.<l>.key`` to one buffer: a run then writes the rows of its part alone. A long
prompt is encoded part by part, whose activations take the memory of a part; a prompt that continues an earlier one is
encoded from where it differs.

Needs: a decoder-only model whose prompt caches are all keys and values as numbers (``kv``), PromptAttention, and
positions that are counted from 0 on. Runs last: both graphs share all weights.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder, graph_input, read_instead, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "prompt_parts"
STARTS, OUT = "starts", "source_out"
"""Names in the new graph: the input with the position of each sample's first token; the prefix of its outputs."""


def prompt_parts(graphs: ModelGraphs) -> PassResult:
    """Set ``graphs.prompt`` to the new graph, if there can be one."""
    reason = _obstacle(graphs)
    if reason:
        return PassResult(NAME, 0, reason)
    graph = graphs.encoder.copy()
    build = Builder(graph, NAME)
    starts = graph_input(graph, STARTS, np.int64, ["B"])
    for place, from_zero in _places(graph):
        column = build.add("Unsqueeze", [starts, build.constant([1])])
        read_instead(place, build.add("Add", [column, from_zero]))
    graph.inputs[0].shape = ["B", "part"]
    kept = list(graph.outputs)
    graph.outputs = []
    for cache in kept:
        name = cache.name
        B, G, N, width = cache.shape
        buffer = graph_input(graph, name, cache.dtype, [B, G, N, width])
        cache.name, cache.shape = f"{NAME}.{name}", [B, G, "part", width]
        updated = gs.Variable(name.replace("source", OUT, 1), dtype=cache.dtype, shape=[B, G, N, width])
        read_instead(cache, updated)
        build.add("TensorScatter", [buffer, cache, starts], {"axis": -2}, [updated])
        graph.outputs.append(updated)
    for node in graph.nodes:
        if node.op == "PromptAttention":
            bias = node.inputs[4:]
            node.inputs = [*node.inputs[:3], starts, *bias]
            node.outputs[0].shape = ["B", "part", node.outputs[0].shape[2]]
    tidy(graph)
    graphs.prompt = graph
    return PassResult(NAME, len(kept))


def _obstacle(graphs: ModelGraphs) -> str:
    """The reason why there is no such graph; empty if there is."""
    if not graphs.sizes.decoder_only:
        return "the model has an encoder"
    encoder = graphs.encoder
    if any(node.op == "Attention" for node in encoder.nodes):
        return "the prompt's attention is not PromptAttention"
    caches = {tensor.name: tensor.shape for tensor in encoder.outputs}
    names = [f"source.{layer}.{part}" for layer in range(graphs.sizes.L) for part in ("key", "value")]
    if list(caches) != names or any(shape[0] != "B" or len(shape) != 4 for shape in caches.values()):
        return "a layer's prompt cache is not its keys and values"
    counted = [from_zero for _, from_zero in _places(encoder)]
    if any(node.op == "Range" and not any(node.outputs[0] is own for own in counted) for node in encoder.nodes):
        return "positions are not only the places of tokens"
    return ""


def _places(graph: gs.Graph) -> list[tuple[gs.Tensor, gs.Tensor]]:
    """Tensors Expand(Unsqueeze(Range(0, N, 1), 0), [B, N]), the positions of the tokens, each with its Range [N]."""
    found = []
    for node in graph.nodes:
        if node.op != "Expand" or not node.inputs[0].inputs or node.inputs[0].inputs[0].op != "Unsqueeze":
            continue
        positions, axes = node.inputs[0].inputs[0].inputs
        if not positions.inputs or positions.inputs[0].op != "Range" or len(positions.outputs) != 1:
            continue
        first, _, step = positions.inputs[0].inputs
        constants = all(isinstance(tensor, gs.Constant) for tensor in (first, step, axes))
        if constants and (int(first.values), int(step.values), axes.values.reshape(-1).tolist()) == (0, 1, [0]):
            found.append((node.outputs[0], positions))
    return found
