"""Fold the biases of keys and values away, in every attention of both graphs.

    x - MatMul W_K - Add b_K -                                       x - MatMul W_K -
    x - MatMul W_V - Add b_V - Attention - MatMul W_O - Add b_O  ->  x - MatMul W_V - Attention - MatMul W_O - Add c'

Softmax weights sum to one, so b_V passes through the attention into the output's bias: c' = b_V W_O + b_O, in float64.
The term q b_K^T is the same at every position, so softmax drops it, unless keys are rotated (RoPE) or normalised on the
way to their scores, or scores are capped: then b_K stays.

Needs: Attention nodes fed by ``x W (+ b)``. Saves the biases, which caches of keys alone, of states and of inputs could
not represent.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import AttentionBlock, Projection, attention_blocks, head_width, projection_behind
from tightbeam.graph_passes.builder import Builder, read_instead, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassError, PassResult

NAME = "fold_biases"


def fold_biases(graphs: ModelGraphs) -> PassResult:
    """Fold the biases of keys and values, in place."""
    folded = 0
    saved = 0
    for graph in (graphs.encoder, graphs.decoder):
        build = Builder(graph, NAME)
        for block in attention_blocks(graph, NAME):
            folded_parts = (block.value,) if block.keeps_key_bias else (block.key, block.value)
            for projection in folded_parts:
                if projection.bias is not None:
                    saved += int(projection.bias.values.nbytes)
                    folded += 1
            if block.value.bias is not None:
                _fold_value_bias(build, block, head_width(block.node.inputs[2]) or graphs.sizes.V)
            for projection in folded_parts:
                if projection.bias is not None:
                    read_instead(projection.output, projection.matmul.outputs[0])
        if graph is graphs.encoder and graphs.sizes.merged:
            _drop_source_biases(graph, graphs.sizes.L)
        tidy(graph)
    if not folded:
        return PassResult(NAME, 0, "no key or value projection has a bias")
    return PassResult(NAME, folded, bytes_saved=lambda run: saved)


def _drop_source_biases(encoder: gs.Graph, L: int) -> None:
    """Drop the biases of a merged source's values. The decoder's layers have the same ones, and fold them."""
    outputs = {tensor.name: tensor for tensor in encoder.outputs}
    for layer in range(L):
        projection = projection_behind(outputs[f"source.{layer}.value"])
        if projection is not None and projection.bias is not None:
            read_instead(projection.output, projection.matmul.outputs[0])


def _fold_value_bias(build: Builder, block: AttentionBlock, V: int) -> None:
    """c' = b_V W_O + b_O, in float64; each value head's bias once for every query head that reads it."""
    assert block.value.bias is not None
    W_O = np.asarray(block.output.weight.values, dtype=np.float64)
    b_V = np.asarray(block.value.bias.values, dtype=np.float64).reshape(-1)
    if b_V.size < W_O.shape[0] and W_O.shape[0] % b_V.size == 0:
        b_V = b_V.reshape(-1, V).repeat(W_O.shape[0] // b_V.size, axis=0).reshape(-1)
    if b_V.size != W_O.shape[0]:
        where = block.node.name or block.node.outputs[0].name
        raise PassError(f"{NAME}: {where} has {b_V.size} value biases for {W_O.shape[0]} rows of its output weight")
    c = b_V @ W_O
    if block.output.bias is not None:
        c = c + np.asarray(block.output.bias.values, dtype=np.float64).reshape(-1)
    bias = build.constant(c, dtype=block.output.weight.dtype)
    _set_bias(build, block.output, bias)


def _set_bias(build: Builder, projection: Projection, bias: gs.Constant) -> None:
    if projection.bias is not None:
        add = projection.output.inputs[0]
        add.inputs = [bias if tensor is projection.bias else tensor for tensor in add.inputs]
        return
    readers = list(projection.output.outputs)
    biased = build.add("Add", [projection.output, bias])
    for node in readers:
        node.inputs = [biased if tensor is projection.output else tensor for tensor in node.inputs]
