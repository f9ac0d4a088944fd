"""Edits of a graph: new nodes under one prefix, readers moved to another tensor, inputs made and removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.plugins.ops import DOMAIN

MISSING = gs.Variable.empty()
"""An optional input that is left out."""
ROWS, POSITIONS = "rows", "positions"
"""Last part of the name of a Reshape made by :meth:`Builder.rows` or :meth:`Builder.positions`."""
INVERSE = "inverse"
"""Last part of the name of a constant made by :meth:`Builder.inverse`."""


class Builder:
    """Appends nodes to a graph; the names of nodes, tensors and constants begin with ``prefix``, a pass's name."""

    def __init__(self, graph: gs.Graph, prefix: str) -> None:
        self.graph = graph
        self.prefix = prefix
        self.count = 0

    def constant(self, values: Any, dtype: Any = np.int64) -> gs.Constant:
        """New constant of ``values`` in ``dtype``."""
        self.count += 1
        return gs.Constant(f"{self.prefix}.constant_{self.count}", np.ascontiguousarray(values, dtype=dtype))

    def inverse(self, values: Any, dtype: Any) -> gs.Constant:
        """New constant of ``values``, which have the right inverse of a weight in them (``split_inverses``)."""
        made = self.constant(values, dtype)
        made.name += f".{INVERSE}"
        return made

    def add(
        self,
        op: str,
        inputs: Sequence[gs.Tensor],
        attrs: dict[str, Any] | None = None,
        outputs: Sequence[gs.Tensor] | None = None,
        domain: str | None = None,
    ) -> gs.Tensor:
        """Append one node; returns its first output, a new tensor unless ``outputs`` are given."""
        self.count += 1
        name = f"{self.prefix}.{op.lower()}_{self.count}"
        made = list(outputs) if outputs is not None else [gs.Variable(name)]
        node = gs.Node(op=op, name=name, attrs=attrs or {}, inputs=list(inputs), outputs=made, domain=domain)
        self.graph.nodes.append(node)
        return made[0]

    def operator(
        self, op: str, inputs: Sequence[gs.Tensor], attrs: dict[str, Any], outputs: Sequence[gs.Tensor]
    ) -> gs.Tensor:
        """Append one operator of ``plugins/``.

        Its outputs must have types and shapes: a runtime's rewrites need them, and the runtime cannot infer them
        through an operator of another domain.
        """
        return self.add(op, inputs, attrs, outputs, DOMAIN)

    def variable(self, name: str, shape: Sequence[int | str], dtype: Any = np.float32) -> gs.Variable:
        """Tensor of known type and shape, ``name`` under the builder's prefix."""
        return gs.Variable(f"{self.prefix}.{name}", dtype=np.dtype(dtype), shape=list(shape))

    def reshape(self, tensor: gs.Tensor, shape: Sequence[int]) -> gs.Tensor:
        """Reshape to fixed sizes; 0 keeps a size, -1 is inferred."""
        return self.add("Reshape", [tensor, self.constant(shape)])

    def rows(self, tensor: gs.Tensor, width: int) -> gs.Tensor:
        """[R, 1, width] as [R, width], the form that operators of ``plugins/`` take."""
        return self._reshape_step(ROWS, tensor, [-1, width])

    def positions(self, tensor: gs.Tensor, width: int) -> gs.Tensor:
        """[R, width] as [R, 1, width], the form of the traced graph."""
        return self._reshape_step(POSITIONS, tensor, [-1, 1, width])

    def _reshape_step(self, kind: str, tensor: gs.Tensor, shape: Sequence[int]) -> gs.Tensor:
        reshaped = self.reshape(tensor, shape)
        reshaped.inputs[0].name += f".{kind}"
        return reshaped

    def transpose(self, tensor: gs.Tensor, perm: Sequence[int]) -> gs.Tensor:
        """Append one Transpose."""
        return self.add("Transpose", [tensor], {"perm": list(perm)})


def graph_input(graph: gs.Graph, name: str, dtype: Any, shape: Sequence[int | str]) -> gs.Variable:
    """The graph input of this name; made if it does not exist."""
    for tensor in graph.inputs:
        if tensor.name == name:
            return tensor
    tensor = gs.Variable(name, dtype=np.dtype(dtype), shape=list(shape))
    graph.inputs.append(tensor)
    return tensor


def read_instead(old: gs.Tensor, new: gs.Tensor) -> None:
    """Make every node that reads ``old`` read ``new``."""
    for node in list(old.outputs):
        node.inputs = [new if tensor is old else tensor for tensor in node.inputs]


def give_instead(graph: gs.Graph, old: gs.Tensor, output: gs.Tensor) -> None:
    """Make the producer of ``old`` produce the graph's ``output``, which has the same values, in its place.

    Does nothing if ``old`` is itself an input or output of the graph.
    """
    if not old.inputs or any(old is other for other in graph.outputs):
        return
    (producer,) = old.inputs
    output.inputs.clear()
    read_instead(old, output)
    producer.outputs = [output if tensor is old else tensor for tensor in producer.outputs]


def only_reader(tensor: gs.Tensor, outputs: Sequence[gs.Tensor]) -> Any:
    """The only consumer of a tensor; None for several consumers and for a graph output."""
    if len(tensor.outputs) != 1 or any(output is tensor for output in outputs):
        return None
    return tensor.outputs[0]


def remove_inputs(graph: gs.Graph, names: Sequence[str]) -> None:
    """Remove graph inputs by name."""
    graph.inputs = [tensor for tensor in graph.inputs if tensor.name not in names]


def split_last_axes(graph: gs.Graph) -> None:
    """Count the axis of a Split of [., ., columns], in a feed-forward part, from the end.

    It is then the same axis after ``step_rows``, which makes rows matrices.
    """
    for node in graph.nodes:
        if node.op == "Split" and node.attrs.get("axis") == 2:
            node.attrs["axis"] = -1


def tidy(graph: gs.Graph) -> None:
    """Remove nodes and tensors that nothing reads, and restore the order of execution."""
    graph.cleanup().toposort()
