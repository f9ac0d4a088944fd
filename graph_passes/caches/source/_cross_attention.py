"""What the cross-attention passes share: moving projections to the encoder, and attention of all beams of a sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.attention import AttentionBlock, Projection
from tightbeam.graph_passes.builder import Builder, graph_input, remove_inputs, tidy
from tightbeam.graph_passes.caches.algebra import multiply_heads
from tightbeam.graph_passes.caches.bytes import source_bytes
from tightbeam.graph_passes.model import ModelGraphs, RunSize, Sizes

STATES = "encoder_hidden_states"


def project_in_encoder(graphs: ModelGraphs, block: AttentionBlock, layer: int) -> tuple[gs.Tensor, gs.Tensor]:
    """Move layer ``layer``'s key and value projections behind the encoder.

    Returns the projections, encoder tensors [B, G, N, K] and [B, G, N, V], not yet outputs.
    """
    build = Builder(graphs.encoder, f"source.{layer}")
    sizes = graphs.sizes
    projected = []
    for projection, width in ((block.key, sizes.K), (block.value, sizes.V)):
        tensor = build.reshape(_project(graphs, build, projection), [0, 0, sizes.G, width])  # [B, N, G, K]
        projected.append(build.transpose(tensor, [0, 2, 1, 3]))  # [B, G, N, K]
    return projected[0], projected[1]


def keys_in_encoder(graphs: ModelGraphs, block: AttentionBlock, layer: int) -> gs.Variable:
    """Move layer ``layer``'s key projection behind the encoder: output ``source.<layer>.key`` [B, N, G K]."""
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
    """Make an encoder tensor an output that feeds the decoder input of the same name."""
    dtype = np.dtype(np.float32)
    producer = tensor.inputs[0]
    output = gs.Variable(name, dtype=dtype, shape=list(shape))
    producer.outputs = [output if made is tensor else made for made in producer.outputs]
    graphs.encoder.outputs.append(output)
    return graph_input(graphs.decoder, name, dtype, shape)


def mask_per_sample(graphs: ModelGraphs) -> gs.Variable:
    """The decoder's ``attention_mask``, now one row a sample: int64 [B, N]."""
    mask = graph_input(graphs.decoder, "attention_mask", np.int64, ["B", "N"])
    mask.shape = ["B", "N"]
    return mask


def flags_per_sample(graphs: ModelGraphs, build: Builder) -> gs.Tensor:
    """The source mask as our operators take it, bool [B, N]."""
    return build.add("Cast", [mask_per_sample(graphs)], {"to": 9})


def mask_per_beam(graphs: ModelGraphs, build: Builder) -> tuple[gs.Tensor, gs.Tensor]:
    """The source mask repeated for the beams of each sample, bool [B, M, N], and B as int64 [1]."""
    mask = mask_per_sample(graphs)
    tokens = next(tensor for tensor in graphs.decoder.inputs if tensor.name == "tokens")
    samples = build.add("Shape", [mask], {"start": 0, "end": 1})
    source = build.add("Shape", [mask], {"start": 1, "end": 2})
    rows = build.add("Shape", [tokens], {"start": 0, "end": 1})
    beams = build.add("Div", [rows, samples])
    flags = build.add("Cast", [mask], {"to": 9})  # [B, N]
    flags = build.add("Unsqueeze", [flags, build.constant([1])])  # [B, 1, N]
    shape = build.add("Concat", [samples, beams, source], {"axis": 0})
    return build.add("Expand", [flags, shape]), samples


def repeat_for_beams(build: Builder, tensor: gs.Tensor, num_beams: gs.Tensor) -> gs.Tensor:
    """Keys or values [B, G, N, K] as [R, G, N, K], each sample's M times; ``num_beams`` int64 [1]."""
    one_more = build.add("Unsqueeze", [tensor, build.constant([1])])  # [B, 1, G, N, K]
    ones = build.constant([1])
    shape = build.add("Concat", [ones, num_beams, ones, ones, ones], {"axis": 0})
    repeated = build.add("Expand", [one_more, shape])  # [B, M, G, N, K]
    tail = build.add("Shape", [tensor], {"start": 1})
    rows_shape = build.add("Concat", [build.constant([-1]), tail], {"axis": 0})
    return build.add("Reshape", [repeated, rows_shape])


def attend_states(
    build: Builder,
    block: AttentionBlock,
    name: str,
    states: gs.Tensor,
    flags: gs.Tensor,
    W_K: npt.NDArray[Any],
    W_V: npt.NDArray[Any],
    rows: str,
) -> None:
    """Let a block read ``states`` [B, N, X] as keys and values at once, whole rows: its queries go through W_K
    [H, K, X] first, what it attends to through W_V [H, X, V]. ``rows``: ``Sizes.rows``."""
    H, _, X = W_K.shape
    dtype = block.key.weight.dtype
    queries = multiply_heads(build, block.query.output, W_K, dtype)  # [R, H, X]
    attended = build.variable(name, [rows, H, X])
    build.operator("LatentAttention", [queries, states, flags], {"scale": block.scale}, [attended])
    replace(block, build.positions(multiply_heads(build, attended, W_V, dtype), H * W_V.shape[2]))


def attend_keys(
    build: Builder,
    block: AttentionBlock,
    name: str,
    keys: gs.Tensor,
    flags: gs.Tensor,
    W_KV: npt.NDArray[Any],
    rows: str,
) -> None:
    """Let a block read ``keys`` [B, N, G K]: a head's own part for its scores, whole rows through W_KV [H, G K, V] for
    its values. ``rows``: ``Sizes.rows``."""
    H, E, V = W_KV.shape
    queries = build.reshape(block.query.output, [-1, H, block.query.weight.shape[1] // H])  # [R, H, K]
    attended = build.variable(name, [rows, H, E])
    build.operator("LatentAttention", [queries, keys, flags], {"scale": block.scale}, [attended])
    replace(block, build.positions(multiply_heads(build, attended, W_KV, block.key.weight.dtype), H * V))


def source_saved(kind: str, layers: int, sizes: Sizes) -> Callable[[RunSize], int]:
    """Bytes that a kind of source cache saves, next to ``kv-per-beam``, where so many layers have it."""
    return lambda run: source_bytes(["kv-per-beam"] * layers, sizes, run) - source_bytes([kind] * layers, sizes, run)


def replace(block: AttentionBlock, attended: gs.Tensor) -> None:
    """Feed the output projection with ``attended`` [R, 1, H x V] in place of the block's own attention."""
    block.output.matmul.inputs[0] = attended


def drop_encoder_states(graphs: ModelGraphs) -> None:
    """Take ``encoder_hidden_states`` off the way from the encoder to the decoder, once no layer reads it."""
    tidy(graphs.decoder)
    if any(tensor.name == STATES and tensor.outputs for tensor in graphs.decoder.inputs):
        return
    remove_inputs(graphs.decoder, [STATES])
    graphs.encoder.outputs = [tensor for tensor in graphs.encoder.outputs if tensor.name != STATES]
    tidy(graphs.encoder)
