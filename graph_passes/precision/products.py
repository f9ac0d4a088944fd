"""Products and embeddings of a graph, replaced by operators of ``plugins/`` that take rows as matrices.

    x [..., X] - MatMul(W) - Add b - Gelu - Add r  ->  x - Reshape [R, X] - operator(W, b, Gelu, r) - Reshape
    tokens - Gather(E)                             ->  tokens - Reshape [R] - operator(E) - Reshape

An operator takes over the bias, the activation and the residual that follow its product, if nothing else reads the
tensors in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder, only_reader
from tightbeam.graph_passes.precision.activations import activation_of
from tightbeam.graph_passes.precision.same_rows import same_rows
from tightbeam.graph_passes.precision.sites import Site
from tightbeam.graph_passes.tensor_types import tensor_infos
from tightbeam.plugins.ops.quantized_matmul import ACTIVATIONS

__all__ = ["Products"]

Dimensions = list[int | str]


@dataclass
class _Followed:
    """What one operator takes over with a product: bias, activation, addend, and the output behind them."""

    output: gs.Tensor
    bias: gs.Constant | None
    activation: str
    addend: gs.Tensor | None


class Products:
    """Replaces nodes of a graph, in the name of a pass.

    Parameters
    ----------
    graph
        In order of execution, without nodes that nothing reads.
    name
        The pass.
    where
        The graph, for errors.

    Raises
    ------
    PassError
        The types of the graph's tensors do not agree.
    """

    def __init__(self, graph: gs.Graph, name: str, where: str) -> None:
        infos = tensor_infos(graph, f"{name}: {where}")
        self.build = Builder(graph, name)
        self.types = {tensor: int(info.elem_type) for tensor, info in infos.items()}
        self.shapes = {tensor: _shape(info) for tensor, info in infos.items()}
        self._same = same_rows(graph)
        self._leading: dict[str, gs.Tensor] = {}
        self._zero = self.build.constant(np.zeros((1, 1)), np.float32)

    def is_matrix(self, site: Site) -> bool:
        """True if a product's rows are already [R, X]."""
        shape = self.shapes.get(site.rows.name) if site.rows is not None else None
        return site.node.op == "Gemm" or (shape is not None and len(shape) == 2)

    def matrix_of(self, site: Site, width: int) -> gs.Tensor:
        """Return the left operand of a product, reshaped to [-1, width]; ``width`` must divide X."""
        assert site.rows is not None
        if self.is_matrix(site) and width == site.X:
            return site.rows
        return self.build.reshape(site.rows, [-1, width])

    def height_of(self, rows: gs.Tensor) -> str:
        """A name for the number of rows of a tensor."""
        shape = self.shapes.get(rows.name)
        if shape is not None and "?" not in shape:
            return " ".join(str(size) for size in shape[:-1] if size != 1) or "one"
        return f"height of {rows.name}"

    def product(self, site: Site, op: str, inputs: Sequence[gs.Tensor], *, activates: bool) -> None:
        """Replace a product, with the bias and the residual that follow it, by an operator over ``inputs``.

        ``activates``: the operator can take over an activation too.
        """
        assert site.rows is not None
        followed = self._follow(site, activates)
        is_matrix = self.is_matrix(site)
        bias = np.zeros(site.Y) if followed.bias is None else followed.bias.values.reshape(-1)
        addend = followed.addend
        if addend is None:
            addend = self._zero
        elif not is_matrix:
            addend = self.build.reshape(addend, [-1, site.Y])
        given = [*inputs, self.build.constant(bias, np.float32), addend]
        attributes = {"activation": ACTIVATIONS[followed.activation]} if activates else {}
        products = self.build.variable(f"products_{self.build.count}", [self.height_of(site.rows), site.Y])
        output = followed.output
        output.inputs[0].outputs.clear()
        if is_matrix:
            output.dtype = products.dtype
            if not any(output is other for other in self.build.graph.outputs):  # the graph's outputs keep their shapes
                output.shape = products.shape
            self.build.operator(op, given, attributes, [output])
        else:
            self.build.operator(op, given, attributes, [products])
            whole = self.build.add("Concat", [self._leading_of(site.rows), self.build.constant([site.Y])], {"axis": 0})
            self.build.add("Reshape", [products, whole], outputs=[output])

    def embedding(self, site: Site, op: str, inputs: Sequence[gs.Tensor]) -> None:
        """Replace a look-up of tokens by an operator of tokens [R] and ``inputs``."""
        node = site.node
        tokens, output = node.inputs[1], node.outputs[0]
        if self.types[tokens.name] != onnx.TensorProto.INT64:
            tokens = self.build.add("Cast", [tokens], {"to": onnx.TensorProto.INT64})
        node.outputs.clear()
        flat = self.build.reshape(tokens, [-1])
        embeddings = self.build.variable(f"embeddings_{self.build.count}", ["tokens", site.X])
        self.build.operator(op, [flat, *inputs], {}, [embeddings])
        shape = self.build.add("Shape", [tokens])
        whole = self.build.add("Concat", [shape, self.build.constant([site.X])], {"axis": 0})
        self.build.add("Reshape", [embeddings, whole], outputs=[output])

    def _follow(self, site: Site, activates: bool) -> _Followed:
        """Find the nodes after a product that can be taken over, since nothing else reads their inputs."""
        followed = _Followed(site.node.outputs[0], site.bias, "", site.addend)
        if site.addend is not None:
            return followed
        add = self._only_add(followed.output)
        bias = None if add is None else next((t for t in add.inputs if isinstance(t, gs.Constant)), None)
        if site.bias is None and add is not None and bias is not None and bias.values.shape == (site.Y,):
            followed.bias, followed.output = bias, add.outputs[0]
        found = activation_of(followed.output, self.build.graph.outputs) if activates else None
        if found is not None:
            followed.activation, followed.output = found
        add = self._only_add(followed.output)
        if add is not None:
            other = next(tensor for tensor in add.inputs if tensor is not followed.output)
            if not isinstance(other, gs.Constant) and self._has_shape_of(other, site, followed.output):
                followed.addend, followed.output = other, add.outputs[0]
        return followed

    def _has_shape_of(self, other: gs.Tensor, site: Site, output: gs.Tensor) -> bool:
        """True if a tensor is known to have the shape of a product's output."""
        shape, rows = self.shapes.get(other.name), self._same.get(site.node.outputs[0].name)
        if not shape:
            return False
        if rows is not None and self._same.get(other.name, other.name) == rows and shape[-1] == site.Y:
            return True
        return "?" not in shape and self.shapes.get(output.name) == shape

    def _only_add(self, tensor: gs.Tensor) -> gs.Node | None:
        reader = only_reader(tensor, self.build.graph.outputs)
        return reader if reader is not None and reader.op == "Add" and not reader.domain else None

    def _leading_of(self, rows: gs.Tensor) -> gs.Tensor:
        """All sizes of ``rows`` but the last."""
        if rows.name not in self._leading:
            self._leading[rows.name] = self.build.add("Shape", [rows], {"start": 0, "end": -1})
        return self._leading[rows.name]


def _shape(info: onnx.TypeProto.Tensor) -> Dimensions | None:
    if not info.HasField("shape"):
        return None
    return [dim.dim_param or ("?" if not dim.HasField("dim_value") else dim.dim_value) for dim in info.shape.dim]
