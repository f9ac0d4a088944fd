"""Move the scales of channels from keys into queries, for keys that are cached in int8: exact, and at no cost in a run.

    x - MatMul W_Q [- Add b_Q] -                       x - MatMul W_Q s [- Add b_Q s] -
    x - MatMul W_K [- Add b_K] - Attention     ->      x - MatMul W_K / s [- Add b_K / s] - Attention

    x - MatMul W_Q - norm(g_Q) -               ->      x - MatMul W_Q - norm(g_Q s) -
    x - MatMul W_K - norm(g_K) - Attention             x - MatMul W_K - norm(g_K / s) - Attention

``s`` has a number for each channel of each key head. A key of int8 has one scale, so that channels which are many times
as large as the others cost these their bits. The scales are powers of two, so that each score is the same number as
before, unless a number leaves float32's range. Channels that a rotation (RoPE) turns into one another share a scale,
and so do the heads if the norm of each has one gain for all.

The scales come from ``export/accuracy/key_scales.py``. Needs: canonical attentions with nothing but a rotation and an
RMSNormalization between projections and scores. In a decoder-only model the attention over the prompt changes with that
over the generated part.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import (
    LAYOUT_OPS,
    NORM,
    ROTATION,
    AttentionBlock,
    Projection,
    cross_attention,
    prompt_attention,
    self_attention,
)
from tightbeam.graph_passes.builder import Builder
from tightbeam.graph_passes.model import Array, ModelGraphs, PassError, PassResult

__all__ = ["move_key_scales", "shares_gain"]

NAME = "move_key_scales"


def move_key_scales(graphs: ModelGraphs, source: Mapping[int, Array], generated: Mapping[int, Array]) -> PassResult:
    """Divide keys by their scales and multiply queries by them, in place.

    Parameters
    ----------
    graphs
        Canonical graphs.
    source, generated
        Powers of two [G, K] by layer: of the attention over the source, and of that over the generated part. A
        decoder-only model has the latter alone.

    Raises
    ------
    PassError
        A scale is not a power of two, or not the same for two channels that are rotated into one another, or for heads
        that share the gain of their norm.
    """
    parts = [(graphs.decoder, self_attention, generated), (graphs.decoder, cross_attention, source)]
    if graphs.sizes.decoder_only:
        parts[1] = (graphs.encoder, prompt_attention, generated)
    for graph, blocks, scales in parts:
        for layer, block in blocks(graphs, NAME, sorted(scales)).items() if scales else ():
            _check(graphs, layer, block, scales[layer])
            _change(Builder(graph, f"{NAME}.{block.node.name}"), block, scales[layer])
    return PassResult(NAME, len(source) + len(generated))


def _check(graphs: ModelGraphs, layer: int, block: AttentionBlock, scale: Array) -> None:
    if not (np.frexp(scale)[0] == 0.5).all():
        raise PassError(f"{NAME}: {block.node.name} has scales that are not powers of two")
    if shares_gain(block) and (scale != scale[0]).any():
        raise PassError(
            f"{NAME}: the heads of {block.node.name} share the gain of their norm, and have different scales"
        )
    X = graphs.rotations[layer][0].shape[1] if ROTATION in block.between else 0
    if (scale[:, :X] != scale[:, X : 2 * X]).any():
        raise PassError(f"{NAME}: {block.node.name} rotates channels of different scales into one another")


def _change(build: Builder, block: AttentionBlock, scale: Array) -> None:
    heads = block.query.weight.shape[1] // scale.shape[1]
    by_query = np.repeat(scale, heads // len(scale), axis=0).reshape(-1)
    for role, projection, factors in (
        (block.node.inputs[0], block.query, by_query),
        (_keys(block), block.key, 1 / scale.reshape(-1)),
    ):
        norm = _norm_behind(role)
        if norm is None:
            _multiply(build, projection, factors)
        else:
            gain = norm.inputs[1]
            scaled = gain.values * factors[: gain.values.size].reshape(gain.values.shape)
            norm.inputs[1] = build.constant(scaled, np.dtype(gain.dtype))


def shares_gain(block: AttentionBlock) -> bool:
    """True if each key head is normalised by itself, and all heads have the same gain."""
    norm = _norm_behind(_keys(block))
    return norm is not None and bool(norm.inputs[1].values.size < block.key.weight.shape[1])


def _keys(block: AttentionBlock) -> gs.Tensor:
    """The tensor that is cached as keys, or attended to as keys."""
    return block.new[0] if block.new is not None else block.node.inputs[1]


def _norm_behind(tensor: gs.Tensor) -> gs.Node | None:
    """The norm between a projection and the scores."""
    while tensor.inputs and tensor.inputs[0].op in (*LAYOUT_OPS, ROTATION, NORM):
        node = tensor.inputs[0]
        if node.op == NORM:
            return node
        tensor = node.inputs[0]
    return None


def _multiply(build: Builder, projection: Projection, factors: Array) -> None:
    """Multiply the columns of a projection."""
    dtype = np.dtype(projection.weight.dtype)
    projection.matmul.inputs[1] = build.constant(projection.weight.values * factors, dtype)
    if projection.bias is not None:
        bias = build.constant(projection.bias.values.reshape(-1) * factors, dtype)
        add = projection.output.inputs[0]
        add.inputs = [bias if tensor is projection.bias else tensor for tensor in add.inputs]
