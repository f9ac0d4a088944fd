"""Quantise the generated cache: each row is integers of 8 bits with a scale of its own, made when a step writes it.

    BeamAttention(new row, K, V, ...)  ->  K float32, V float32
    ->  QuantizedBeamAttention(new row, K, K.scale, V, V.scale, ...)  ->  K int8, K.scale, V int8, V.scale

A row is the key or the value of one head at one position, so that no row depends on another. Needs: float32 generated
caches that this operator reads. Saves three quarters of them, less 4 bytes a row, and as much reading in every step.
Not exact: an export measures the error. Operator: ``plugins/ops/quantized_beam_attention``, which has a CPU kernel
alone.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.caches.kinds import GENERATED_KINDS
from tightbeam.graph_passes.model import CacheState, ModelGraphs, PassError, PassResult, RunSize
from tightbeam.plugins.ops.beam_attention import BEAM_ATTENTION
from tightbeam.plugins.ops.quantized_beam_attention import QUANTIZED_BEAM_ATTENTION

__all__ = ["QUANTIZED_GENERATED", "quantize_generated"]

NAME = "quantize_generated"
QUANTIZED_GENERATED = tuple(kind.name for kind in GENERATED_KINDS if kind.scales is not None)
"""Kinds of generated cache whose rows can be integers."""
PARTS = ("key", "value")


def quantize_generated(graphs: ModelGraphs) -> PassResult:
    """Make the generated caches of the decoder int8, with scales beside them, in place.

    Raises PassError if something else than BeamAttention reads a generated cache.
    """
    states: list[CacheState] = []
    for node in (node for node in graphs.decoder.nodes if node.op == BEAM_ATTENTION.name):
        given = dict(zip(BEAM_ATTENTION.input_names, node.inputs, strict=False))
        made = dict(zip(BEAM_ATTENTION.output_names, node.outputs, strict=True))
        for part in PARTS:
            cache, written = f"{part}_cache", f"{part}_cache_out"
            states.append(_state(graphs, given[cache]))
            scale, written_scale = _quantize(graphs, given[cache], made[written])
            states.append(CacheState(scale.name, written_scale.name, "in_place", tuple(scale.shape)))
            given[f"{part}_scale_cache"], made[f"{part}_scale_cache_out"] = scale, written_scale
        wanted = QUANTIZED_BEAM_ATTENTION.input_names
        lost = [name for name, tensor in given.items() if name not in wanted and not tensor.is_empty()]
        if lost:
            raise PassError(f"{NAME}: {node.name} has the input {lost[0]}, for which int8 has no operator")
        node.op = QUANTIZED_BEAM_ATTENTION.name
        node.inputs = [given[name] for name in wanted if name in given]
        node.outputs = [made[name] for name in QUANTIZED_BEAM_ATTENTION.output_names]
    if left := sorted({state.input for state in graphs.states} - {state.input for state in states}):
        raise PassError(
            f"{NAME}: {left[0]} is not read by BeamAttention; choose a generated cache of "
            f"{', '.join(QUANTIZED_GENERATED)}"
        )
    graphs.states = tuple(states)
    shapes = [state.shape for state in states[::2]]

    def bytes_saved(run: RunSize) -> int:
        letters = {"R": run.R, "T_max": run.T}
        sizes = [[letters[size] if isinstance(size, str) else size for size in shape] for shape in shapes]
        return sum(3 * prod(size) - 4 * prod(size[:-1]) for size in sizes)

    return PassResult(NAME, len(shapes), bytes_saved=bytes_saved)


def _state(graphs: ModelGraphs, cache: gs.Tensor) -> CacheState:
    return next(state for state in graphs.states if state.input == cache.name)


def _quantize(graphs: ModelGraphs, cache: gs.Variable, written: gs.Variable) -> tuple[gs.Variable, gs.Variable]:
    """Make a cache and what is written to it int8; return the decoder's new input and output for the scales."""
    scales = []
    for tensor, beside in ((cache, graphs.decoder.inputs), (written, graphs.decoder.outputs)):
        tensor.dtype = np.dtype(np.int8)
        scale = gs.Variable(f"{tensor.name}.scale", dtype=np.dtype(np.float32), shape=[*tensor.shape[:-1], 1])
        beside.insert(next(index for index, other in enumerate(beside) if other.name == tensor.name) + 1, scale)
        scales.append(scale)
    return scales[0], scales[1]
