"""Caches of the generated part with a fixed number of positions, which a TensorRT engine is built for.

Needs: caches with a dimension T_max. They get ``room`` positions; ``ancestry`` and ``lengths`` still say how many of
them a run uses. What the host gives room for a whole run, ``ancestry`` and ``history``, gets dimensions of its own:
TensorRT holds two of one name to one size. Saves nothing, and costs what a shorter run leaves unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "fixed_capacity"
ROOM = "T_max"
OWN = {"ancestry": "T_ancestry", "history": "T_history"}


def fixed_capacity(graphs: ModelGraphs, room: int) -> PassResult:
    """Decoder: every T_max in the shape of an input or output becomes ``room``."""

    def fixed(shape: Sequence[int | str]) -> tuple[int | str, ...]:
        return tuple(room if size == ROOM else size for size in shape)

    matched = 0
    for tensor in (*graphs.decoder.inputs, *graphs.decoder.outputs):
        if tensor.name in OWN:
            tensor.shape = [*tensor.shape[:-1], OWN[tensor.name]]
        elif tensor.shape is not None and ROOM in tensor.shape:
            tensor.shape = list(fixed(tensor.shape))
            matched += 1
    graphs.states = tuple(replace(state, shape=fixed(state.shape)) for state in graphs.states)
    return PassResult(NAME, matched, "" if matched else "no cache is written in place")
