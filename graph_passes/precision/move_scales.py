"""Move the scales of channels from the rows of products into their matrices: exact, and at no cost in a run.

    norm(w, b) - x - MatMul(W)            ->  norm(w / s, b / s) - x / s - MatMul(s W)
    MatMul(U) - Add c - Relu - MatMul(W)  ->  MatMul(U / s) - Add c / s - Relu - MatMul(s W)
    act(gate) * MatMul(U) - MatMul(W)     ->  act(gate) * MatMul(U / s) - MatMul(s W)
    MatMul(V) - attention - MatMul(O)     ->  MatMul(V / s) - attention - MatMul(s O)

``s`` has a number for each channel of x: columns of U and V and what follows them, rows of W and O. Values are scaled
by key head, and their caches hold values / s. All scales are powers of two, so that each number of the graph is the
same as before, or the same divided by its channel's scale, unless it leaves float32's range.

The scales, by name of the group (``scale_groups``), come from ``export/accuracy/scale_choice.py``: a row of int8 then
has no channels that are many times as large as the others.

Needs: float32 graphs before ``quantize`` and ``normalize_rows``, with the caches of a plan. Moves what
``scale_groups`` finds. Makes a copy of each matrix that changes, one for all its readers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.model import Array, ModelGraphs, PassError, PassResult
from tightbeam.graph_passes.precision.scale_groups import Factor, scale_groups
from tightbeam.graph_passes.precision.sites import named_graphs

__all__ = ["move_scales"]

NAME = "move_scales"


def move_scales(graphs: ModelGraphs, scales: Mapping[str, Array]) -> PassResult:
    """Move scales in both graphs, in place.

    Parameters
    ----------
    graphs
        A variant's graphs in float32.
    scales
        Powers of two, float32 [channels], by the name of a group. Other groups stay as they are.

    Raises
    ------
    PassError
        A scale is not a power of two.
    """
    groups, left = scale_groups(graphs)
    nodes = {(name, node.name): node for name, graph in named_graphs(graphs) for node in graph.nodes}
    given = [(group, scales[group.name]) for group in groups if group.name in scales]
    factors: dict[tuple[str, str, int], list[tuple[Factor, Array]]] = {}
    for group, scale in given:
        if not (np.frexp(scale)[0] == 0.5).all():
            raise PassError(f"{NAME}: the scales of {group.name} are not all powers of two")
        for factor in group.factors:
            factors.setdefault((factor.graph, factor.node, factor.index), []).append((factor, scale))
    made = _Scaled()
    for (graph, node, index), own in factors.items():
        nodes[graph, node].inputs[index] = made.of(nodes[graph, node].inputs[index], own)
    reason = "" if given else "; ".join(sorted(left)) or "no product reads channels that only products read"
    return PassResult(NAME, len(given), reason if groups == [] else reason and "no scale is better than 1")


class _Scaled:
    """Scaled constants, each made once for all nodes that read the same numbers with the same scales.

    One constant may be scaled in several ways: fresh norms, for example, are all ones. Each way has a name of its own.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], tuple[Array, str, Array]] = {}

    def of(self, constant: gs.Constant, factors: list[tuple[Factor, Array]]) -> gs.Constant:
        values: Array = constant.values
        by_axis: dict[int, Array] = {}
        for factor, scale in factors:
            own = np.append(1 / scale if factor.divided else scale, 1)[factor.channels].astype(np.float32)
            axis = factor.axis % values.ndim
            by_axis[axis] = own * by_axis.get(axis, 1)
        place = int(values.__array_interface__["data"][0]), values.shape, values.strides
        key = *place, *((axis, own.tobytes()) for axis, own in sorted(by_axis.items()))
        if key not in self._made:
            scaled = values
            for axis, own in by_axis.items():
                scaled = scaled * own.reshape([-1 if other == axis else 1 for other in range(values.ndim)])
            self._made[key] = values, f"{constant.name}.{NAME}_{len(self._made)}", scaled
        _, name, scaled = self._made[key]
        return gs.Constant(name, scaled)
