"""What the cross-attention passes share: moving projections to the encoder, and attention of all beams of a sample."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.base import AttentionBlock, Builder, ModelGraphs, graph_input, remove_inputs, tidy


def project_in_encoder(graphs: ModelGraphs, block: AttentionBlock, layer: int) -> tuple[gs.Tensor, gs.Tensor]:
    """Move layer ``layer``'s key and value projections behind the encoder.

    Returns the projections, encoder tensors [B, G, N, K] and [B, G, N, V], not yet outputs.
    """
    build = Builder(graphs.encoder, f"source.{layer}")
    states = next(tensor for tensor in graphs.encoder.outputs if tensor.name == "encoder_hidden_states")
    sizes = graphs.sizes
    projected = []
    for projection, width in ((block.key, sizes.K), (block.value, sizes.V)):
        tensor = build.add("MatMul", [states, build.constant(projection.weight.values, projection.weight.dtype)])
        if projection.bias is not None:
            tensor = build.add("Add", [tensor, build.constant(projection.bias.values, projection.bias.dtype)])
        tensor = build.reshape(tensor, [0, 0, sizes.G, width])  # [B, N, G, K]
        projected.append(build.transpose(tensor, [0, 2, 1, 3]))  # [B, G, N, K]
    return projected[0], projected[1]


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


def replace(block: AttentionBlock, attended: gs.Tensor) -> None:
    """Feed the output projection with ``attended`` [R, 1, H x V] in place of the block's own attention."""
    block.output.matmul.inputs[0] = attended


def drop_encoder_states(graphs: ModelGraphs) -> None:
    """Keys and values replace ``encoder_hidden_states`` on the way from the encoder to the decoder."""
    tidy(graphs.decoder)
    remove_inputs(graphs.decoder, ["encoder_hidden_states"])
    graphs.encoder.outputs = [tensor for tensor in graphs.encoder.outputs if tensor.name != "encoder_hidden_states"]
    tidy(graphs.encoder)
