"""Parts shared by the passes of cross-attention: projections moved to the encoder, and attention over one matrix."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import AttentionBlock, Projection, project_together
from tightbeam.graph_passes.builder import Builder, graph_input, remove_inputs, tidy
from tightbeam.graph_passes.caches.algebra import OneMatrix, key_heads, multiply_heads, value_heads
from tightbeam.graph_passes.caches.cached_keys import CachedKeys
from tightbeam.graph_passes.model import ModelGraphs, Sizes

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


def rows_in_encoder(graphs: ModelGraphs, projection: Projection, layer: int, part: str) -> gs.Variable:
    """Move a layer's projection [D, X] behind the encoder: its output ``source.<layer>.<part>`` [B, N, X]."""
    rows = _project(graphs, Builder(graphs.encoder, f"source.{layer}"), projection)
    return source_tensor(graphs, rows, f"source.{layer}.{part}", ["B", "N", projection.weight.shape[1]])


def _project(graphs: ModelGraphs, build: Builder, projection: Projection) -> gs.Tensor:
    states = next(tensor for tensor in graphs.encoder.outputs if tensor.name == STATES)
    tensor = build.add("MatMul", [states, build.constant(projection.weight.values, projection.weight.dtype)])
    if projection.bias is not None:
        tensor = build.add("Add", [tensor, build.constant(projection.bias.values, projection.bias.dtype)])
    return tensor


def source_tensor(graphs: ModelGraphs, tensor: gs.Tensor, name: str, shape: list[int | str]) -> gs.Variable:
    """Make an encoder tensor an output; returns the decoder input of the same name."""
    dtype = np.dtype(np.float32)
    producer = tensor.inputs[0]
    output = gs.Variable(name, dtype=dtype, shape=list(shape))
    producer.outputs = [output if made is tensor else made for made in producer.outputs]
    graphs.encoder.outputs.append(output)
    return graph_input(graphs.decoder, name, dtype, shape)


def attend_matrix(
    build: Builder,
    block: AttentionBlock,
    layer: int,
    matrix: gs.Tensor,
    flags: gs.Tensor,
    form: OneMatrix,
    sizes: Sizes,
    cached: CachedKeys | None = None,
) -> None:
    """Replace a layer's attention by one over a matrix that holds keys, or what keys are made of.

        Q [- MatMul to_keys,i^T] - LatentAttention(., matrix, flags) - MatMul to_values,i

    Parameters
    ----------
    build
        Builder of the decoder.
    block, layer
        The attention and its layer.
    matrix
        [B, N, X], read as keys and as values, whole rows; scores with keys themselves read a head's own part of a row.
    flags
        bool [B, N].
    form
        Weights that make keys and values of the matrix.
    sizes
        Sizes of the model.
    cached
        Keys with a few more numbers, if the matrix holds these.
    """
    dtype = block.key.weight.dtype
    if form.to_keys is None and cached is not None and cached.few is not None:
        query = project_together(build, (cached.query_projection(block, sizes.H),), block.node.name)
        queries = build.reshape(query, [-1, sizes.H, sizes.K + cached.behind])
    elif form.to_keys is None:
        queries = build.reshape(block.query.output, [-1, sizes.H, sizes.K])
    else:
        queries = multiply_heads(build, block.query.output, key_heads(form.to_keys, sizes.H, sizes.K), dtype)
    to_values = value_heads(form.to_values, sizes.H, sizes.V)  # [H, X, V]
    attended = build.variable(f"attended_{layer}", [sizes.rows, sizes.H, to_values.shape[1]])
    build.operator("LatentAttention", [queries, matrix, flags], block.attributes, [attended])
    values = multiply_heads(build, attended, to_values, dtype, inverse=form.inverted is not None)
    block.replace_with(build.positions(values, sizes.H * sizes.V))


def drop_encoder_states(graphs: ModelGraphs) -> None:
    """Remove ``encoder_hidden_states`` from both graphs, once no layer reads it."""
    tidy(graphs.decoder)
    if any(tensor.name == STATES and tensor.outputs for tensor in graphs.decoder.inputs):
        return
    remove_inputs(graphs.decoder, [STATES])
    graphs.encoder.outputs = [tensor for tensor in graphs.encoder.outputs if tensor.name != STATES]
    tidy(graphs.encoder)
