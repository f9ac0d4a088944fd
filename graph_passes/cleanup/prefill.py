"""Make a second decoder graph, which runs several successive tokens of one row at a time.

    tokens [R, 1] - ... - projected [R, X] - BeamAttention - ... - logits [R, vocabulary]     the decoder, as it is
                              cache [R, G, T_max, K] -

    tokens [S, 1] - ... - projected [S, X] - queries [1, H, S, K] - PromptAttention - ...     the new graph
                                           - keys    [1, G, S, K] -
               cache [1, G, T_max, K] - TensorScatter (starts) -

    tokens [S, 1] - ... - query, row [S, G K] - BeamLatentAttention     likewise; each head's values are whole rows

The row's tokens are at positions ``starts`` to ``starts`` + S - 1, and each sees those before it. Bind a cache's input
and output to one buffer, as for the decoder: a run then writes S rows of it. It is for tokens that are known before
they are generated: the prompt of a decoder (prefill), and a draft of its output, which the logits [S, vocabulary]
verify.

Needs: an encoder, and self-attention over cached keys and values (``kv``), keys (``k``) or inputs (``x``), without
rotation, relative bias and key norm. Runs behind what changes weights, so that both graphs share them, and before
``screen_head`` and ``search_logits``, since a draft's tokens are chosen from whole rows of logits.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder, graph_input, tidy
from tightbeam.graph_passes.cleanup.prompt_parts import STARTS
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "prefill"
ATTENTIONS, INPUTS = ("BeamAttention", "BeamLatentAttention"), 5
"""The operators that are replaced, and how many inputs each has without rotation, bias, norm and prefix."""
OF_STEPS = frozenset({"ancestry", "lengths", "beam_index"})
"""Inputs of the decoder that the new graph must not need."""


def prefill(graphs: ModelGraphs) -> PassResult:
    """Set ``graphs.prefill`` to the new graph, if there can be one."""
    reason = _obstacle(graphs)
    if reason:
        return PassResult(NAME, 0, reason)
    graph = graphs.decoder.copy()
    build = Builder(graph, NAME)
    starts = graph_input(graph, STARTS, np.int64, [1])
    nodes = [node for node in graph.nodes if node.op in ATTENTIONS]
    windowed = any(node.attrs.get("window") for node in nodes)  # all nodes share one function
    for node in nodes:
        _replace(build, node, starts, windowed=windowed)
    results = {output.name for node in graph.nodes if node.op == "BeamTopK" for output in node.outputs}
    graph.outputs = [output for output in graph.outputs if output.name not in results]
    tidy(graph)
    graph.inputs = [tensor for tensor in graph.inputs if tensor.outputs]
    if left := {tensor.name for tensor in graph.inputs} & OF_STEPS:
        return PassResult(NAME, 0, f"another node reads {', '.join(sorted(left))}")
    graphs.prefill = graph
    return PassResult(NAME, len(nodes))


def _obstacle(graphs: ModelGraphs) -> str:
    """Return why the decoder cannot run several tokens of a row at once; empty if it can."""
    if graphs.sizes.one_softmax:
        return "the source is in the softmax of self-attention"
    for tensor in graphs.decoder.inputs:
        if tensor.name.startswith("source.") and tensor.shape[0] != "B":
            return "the beams of a sample have source caches of their own"
    caches = {state.input for state in graphs.states}
    for node in graphs.decoder.nodes:
        if node.op in ATTENTIONS:
            if len(node.inputs) != INPUTS:
                return f"{node.name} has a rotation, a bias, a norm or a prefix"
            caches -= {tensor.name for tensor in node.inputs}
    return f"{', '.join(sorted(caches))} is a cache of another kind" if caches else ""


def _replace(build: Builder, node: gs.Node, starts: gs.Tensor, *, windowed: bool) -> None:
    """Let PromptAttention do for S positions of one row what ``node`` does for one position of S rows."""
    output = node.outputs[0]
    if node.op == "BeamAttention":
        projected, *caches = node.inputs[:3]
        (_, G, _, K), (*_, V) = (cache.shape for cache in caches)
        H = output.shape[1] // V
        widths = {"query": H * K, "key": G * K, "value": G * V}
        query, *rows = [build.variable(f"{output.name}.{part}", ["S", width]) for part, width in widths.items()]
        build.add("Split", [projected, build.constant([*widths.values()])], {"axis": 1}, [query, *rows])
    else:
        query, row, cache = node.inputs[:3]
        rows, caches = [row], [cache]
        _, G, _, K = cache.shape
        H = output.shape[1] // (G * K)
    updated = [
        build.add("TensorScatter", [cache, _by_heads(build, own, G, cache.shape[3]), starts], {"axis": -2}, [new])
        for cache, own, new in zip(caches, rows, node.outputs[1:], strict=True)
    ]
    form = {name: node.attrs[name] for name in ("scale", "softcap") if node.attrs.get(name)}
    if windowed:
        form["window"] = node.attrs.get("window", 0)
    key, value = updated[0], updated[-1]
    if node.op == "BeamLatentAttention" and G > 1:
        key, value = _whole_rows(build, key, build.add("Add", [starts, build.add("Shape", [rows[0]], {"end": 1})]))
    inputs = [_by_heads(build, query, H, K), key, value, starts]
    node.inputs.clear()
    node.outputs.clear()
    attended = build.variable(f"{output.name}.by_sample", [1, "S", output.shape[1]])
    build.operator("PromptAttention", inputs, form, [attended])
    build.add("Reshape", [attended, build.constant([-1, output.shape[1]])], outputs=[output])


def _whole_rows(build: Builder, cache: gs.Tensor, count: gs.Tensor) -> tuple[gs.Tensor, gs.Tensor]:
    """The first ``count`` int64 [1] positions of a cache [1, G, T_max, K], and the same rows [1, G, ., G K] for each of
    its heads."""
    _, G, _, K = cache.shape
    key = build.add("Slice", [cache, build.constant([0]), count, build.constant([2])])
    rows = build.reshape(build.transpose(key, [0, 2, 1, 3]), [1, 1, -1, G * K])
    return key, build.add("Expand", [rows, build.constant([1, G, 1, 1])])


def _by_heads(build: Builder, rows: gs.Tensor, heads: int, width: int) -> gs.Tensor:
    """The heads [1, heads, S, width] of rows [S, heads width]."""
    return build.transpose(build.reshape(rows, [1, -1, heads, width]), [0, 2, 1, 3])
