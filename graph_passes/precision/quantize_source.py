"""Quantise the source cache: each row is integers of 8 bits with a scale of its own, made once a batch.

    encoder: K - source.<l>.key float32                 ->  K - QuantizeRows - source.<l>.key int8, source.<l>.key.scale
    decoder: SourceAttention(Q, K, V, mask)             ->  QuantizedSourceAttention(Q, K, K.scale, V, V.scale, mask)
             LatentAttention(Q, S, mask)                ->  QuantizedLatentAttention(Q, S, S.scale, mask)

A row is the key or the value of one head at one position, or a position's state, or a position's keys of all heads if
values are made of them (``k``), so that no row depends on another. Needs: float32 source caches that these operators
read, without rotation and norm of keys. Saves three quarters of them, less 4 bytes a row, and as much reading in every
step. Not exact: an export measures the error. Operators: ``plugins/ops/quantize_rows``, ``quantized_source_attention``,
``quantized_latent_attention``, which have CPU kernels alone.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder, tidy
from tightbeam.graph_passes.caches.kinds import SOURCE_KINDS
from tightbeam.graph_passes.model import ModelGraphs, PassError, PassResult, RunSize
from tightbeam.plugins.ops import OPERATORS as TABLES
from tightbeam.plugins.ops._softmax import KEY_BIAS

__all__ = ["QUANTIZED_KINDS", "quantize_source"]

NAME = "quantize_source"
QUANTIZED_KINDS = tuple(kind.name for kind in SOURCE_KINDS if kind.scales is not None)
"""Kinds of source cache whose rows can be integers. ``k`` makes values of keys by an inverse of W_K, which multiplies
the rounding; the guard gives the keys a form in which it does so little enough."""
OPERATORS = {"SourceAttention": ("QuantizedSourceAttention", 2), "LatentAttention": ("QuantizedLatentAttention", 1)}
"""Operator over float rows -> operator over integers, and how many of its inputs from 1 on are caches."""


def quantize_source(graphs: ModelGraphs) -> PassResult:
    """Make the source caches of both graphs int8, with scales beside them, in place.

    Raises PassError if a node that is not in ``OPERATORS`` reads a source cache.
    """
    readers = [node for node in graphs.decoder.nodes if node.op in OPERATORS]
    given = {tensor.name for tensor in graphs.decoder.inputs}
    caches = {tensor.name for tensor in graphs.encoder.outputs if tensor.name in given}
    build = Builder(graphs.encoder, NAME)
    scales: dict[str, gs.Variable] = {}
    shapes = []
    for node in readers:
        operator, count = OPERATORS[node.op]
        table = zip(TABLES[node.op].input_names, node.inputs, strict=False)
        read = {name: tensor for name, tensor in table if not tensor.is_empty()}
        bias = [read.pop(KEY_BIAS.name)] if KEY_BIAS.name in read else []
        if len(read) > 2 + count:
            raise PassError(
                f"{NAME}: {node.name} rotates or scales the keys that it reads, for which int8 has no operator; "
                "choose source cache kv"
            )
        inputs = [node.inputs[0]]
        for tensor in node.inputs[1 : 1 + count]:
            if tensor.name not in caches:
                raise PassError(f"{NAME}: {node.name} reads {tensor.name}, expected a source cache")
            if tensor.name not in scales:
                shapes.append(list(tensor.shape))
                scales[tensor.name] = _quantize(graphs, build, tensor)
            inputs += [tensor, scales[tensor.name]]
        node.inputs = [*inputs, node.inputs[1 + count], *bias]
        node.op = operator
    if left := sorted(caches - scales.keys()):
        raise PassError(
            f"{NAME}: {left[0]} is read by other operators than {', '.join(OPERATORS)}; choose a source cache of "
            f"{', '.join(QUANTIZED_KINDS)}"
        )
    for name, scale in scales.items():
        place = next(index for index, tensor in enumerate(graphs.decoder.inputs) if tensor.name == name)
        graphs.decoder.inputs.insert(place + 1, scale)
    tidy(graphs.encoder)

    def bytes_saved(run: RunSize) -> int:
        letters = {"B": run.B, "N": run.N}
        sizes = [[letters[size] if isinstance(size, str) else size for size in shape] for shape in shapes]
        return sum(3 * prod(size) - 4 * prod(size[:-1]) for size in sizes)

    return PassResult(NAME, len(scales), bytes_saved=bytes_saved)


def _quantize(graphs: ModelGraphs, build: Builder, cache: gs.Variable) -> gs.Variable:
    """Make a cache int8 in both graphs; return the decoder's new input for its scales."""
    name, shape = cache.name, list(cache.shape)
    outputs = graphs.encoder.outputs
    place = next(index for index, tensor in enumerate(outputs) if tensor.name == name)
    numbers = outputs[place]
    numbers.name = f"{name}.float"
    rows = build.reshape(numbers, [-1, shape[-1]])
    height = " ".join(str(size) for size in shape[:-1])
    quantized = build.variable(f"{name}.rows", [height, shape[-1]], np.int8)
    row_scale = build.variable(f"{name}.row_scale", [height, 1])
    build.operator("QuantizeRows", [rows], {}, [quantized, row_scale])
    integers = gs.Variable(name, dtype=np.dtype(np.int8), shape=shape)
    scale = gs.Variable(f"{name}.scale", dtype=np.dtype(np.float32), shape=shape[:-1])
    build.add("Reshape", [quantized, build.add("Shape", [numbers])], outputs=[integers])
    build.add("Reshape", [row_scale, build.add("Shape", [numbers], {"start": 0, "end": -1})], outputs=[scale])
    outputs[place : place + 1] = [integers, scale]
    cache.dtype = np.dtype(np.int8)
    return gs.Variable(scale.name, dtype=np.dtype(np.float32), shape=shape[:-1])
