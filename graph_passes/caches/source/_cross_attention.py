"""Parts shared by the passes of cross-attention: projections moved to the encoder, and attention over one matrix."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import AttentionBlock, Projection
from tightbeam.graph_passes.builder import Builder, graph_input, remove_inputs, tidy
from tightbeam.graph_passes.caches.algebra import multiply_heads
from tightbeam.graph_passes.model import Array, ModelGraphs

STATES = "encoder_hidden_states"


def project_in_encoder(graphs: ModelGraphs, block: AttentionBlock, layer: int) -> tuple[gs.Tensor, gs.Tensor]:
    """Move a layer's key and value projections behind the encoder: its tensors [B, G, N, K] and [B, G, N, V]."""
    build = Builder(graphs.encoder, f"source.{layer}")
    sizes = graphs.sizes
    projected = []
    for projection, width in ((block.key, sizes.K), (block.value, sizes.V)):
        tensor = build.reshape(_project(graphs, build, projection), [0, 0, sizes.G, width])  # [B, N, G, K]
        projected.append(build.transpose(tensor, [0, 2, 1, 3]))  # [B, G, N, K]
    return projected[0], projected[1]


def keys_in_encoder(graphs: ModelGraphs, block: AttentionBlock, layer: int) -> gs.Variable:
    """Move a layer's key projection behind the encoder: its output ``source.<layer>.key`` [B, N, G K]."""
    build = Builder(graphs.encoder, f"source.{layer}")
    sizes = graphs.sizes
    keys = _project(graphs, build, block.key)
    return source_tensor(graphs, keys, f"source.{layer}.key", ["B", "N", sizes.G * sizes.K])


def _project(graphs: ModelGraphs, build: Builder, projection: Projection) -> gs.Tensor:
    states = next(tensor for tensor in graphs.encoder.outputs if tensor.name == STATES)
    tensor = build.add("MatMul", [states, build.constant(projection.weight.values, projection.weight.dtype)])
    if projection.bias is not None:
        tensor = build.add("Add", [tensor, build.constant(projection.bias.values, projection.bias.dtype)])
    return tensor


def source_tensor(graphs: ModelGraphs, tensor: gs.Tensor, name: str, shape: list[int | str]) -> gs.Variable:
    """Make an encoder tensor an output, and the decoder input of the same name; returns the latter."""
    dtype = np.dtype(np.float32)
    producer = tensor.inputs[0]
    output = gs.Variable(name, dtype=dtype, shape=list(shape))
    producer.outputs = [output if made is tensor else made for made in producer.outputs]
    graphs.encoder.outputs.append(output)
    return graph_input(graphs.decoder, name, dtype, shape)


def attend_states(
    build: Builder,
    block: AttentionBlock,
    name: str,
    states: gs.Tensor,
    flags: gs.Tensor,
    W_K: Array,
    W_V: Array,
    rows: str,
) -> None:
    """Replace a block's attention by weight absorption over ``states`` [B, N, X].

        Q - MatMul W_K,i^T - LatentAttention(., states, flags) - MatMul W_V,i

    Parameters
    ----------
    build
        Builder of the decoder.
    block
        The attention.
    name
        Name of the operator's output.
    states
        [B, N, X], read as keys and as values, whole rows.
    flags
        bool [B, N].
    W_K, W_V
        [H, K, X] and [H, X, V].
    rows
        Name of the row dimension (``Sizes.rows``).
    """
    H, _, X = W_K.shape
    dtype = block.key.weight.dtype
    queries = multiply_heads(build, block.query.output, W_K, dtype)  # [R, H, X]
    attended = build.variable(name, [rows, H, X])
    build.operator("LatentAttention", [queries, states, flags], block.attributes, [attended])
    block.replace_with(build.positions(multiply_heads(build, attended, W_V, dtype), H * W_V.shape[2]))


def attend_keys(
    build: Builder,
    block: AttentionBlock,
    name: str,
    keys: gs.Tensor,
    flags: gs.Tensor,
    W_KV: Array,
    rows: str,
) -> None:
    """Replace a block's attention by one over its ``keys`` [B, N, G K] alone.

        Q - LatentAttention(., keys, flags) - MatMul W_KV,i

    A head's scores read its own part of a row; its output is made of whole rows, through ``W_KV`` [H, G K, V]. The
    other parameters are those of :func:`attend_states`.
    """
    H, E, V = W_KV.shape
    queries = build.reshape(block.query.output, [-1, H, block.query.weight.shape[1] // H])  # [R, H, K]
    attended = build.variable(name, [rows, H, E])
    build.operator("LatentAttention", [queries, keys, flags], block.attributes, [attended])
    block.replace_with(build.positions(multiply_heads(build, attended, W_KV, block.key.weight.dtype), H * V))


def drop_encoder_states(graphs: ModelGraphs) -> None:
    """Remove ``encoder_hidden_states`` from both graphs, once no layer reads it."""
    tidy(graphs.decoder)
    if any(tensor.name == STATES and tensor.outputs for tensor in graphs.decoder.inputs):
        return
    remove_inputs(graphs.decoder, [STATES])
    graphs.encoder.outputs = [tensor for tensor in graphs.encoder.outputs if tensor.name != STATES]
    tidy(graphs.encoder)
