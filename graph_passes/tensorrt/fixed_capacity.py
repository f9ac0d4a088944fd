"""Give the generated caches the fixed capacity that a TensorRT engine is built for.

    cache.<l>.key [R, G, T_max, K]      ->    [R, G, capacity, K]
    ancestry [B, M, T]                  ->    [B, M, T_ancestry]
    history [R, T]                      ->    [R, T_history]

``ancestry`` and ``lengths`` still say how many positions a run uses. The buffers of ``ancestry`` and ``history`` differ
in size, and TensorRT holds two dimensions of one name to one size, so each gets a name of its own.

Needs: caches with a dimension T_max. Saves nothing, and costs the positions that a shorter run leaves unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "fixed_capacity"
CAPACITY = "T_max"
OWN_DIMENSIONS = {"ancestry": "T_ancestry", "history": "T_history"}


def fixed_capacity(graphs: ModelGraphs, capacity: int) -> PassResult:
    """Replace every T_max in the shapes of the decoder's inputs and outputs by ``capacity`` positions."""

    def fixed(shape: Sequence[int | str]) -> tuple[int | str, ...]:
        return tuple(capacity if size == CAPACITY else size for size in shape)

    matched = 0
    for tensor in (*graphs.decoder.inputs, *graphs.decoder.outputs):
        if tensor.name in OWN_DIMENSIONS:
            tensor.shape = [*tensor.shape[:-1], OWN_DIMENSIONS[tensor.name]]
        elif tensor.shape is not None and CAPACITY in tensor.shape:
            tensor.shape = list(fixed(tensor.shape))
            matched += 1
    graphs.states = tuple(replace(state, shape=fixed(state.shape)) for state in graphs.states)
    return PassResult(NAME, matched, "" if matched else "no cache is written in place")
