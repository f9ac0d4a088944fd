"""Activation functions that a trace may have written out in nodes.

Relu(x); Gelu(x); Swish(x)
x Sigmoid(x)                                         SiLU
0.5 x (1 + Tanh(0.7979 (x + 0.0447 Pow(x, 3))))      GELU by its formula with tanh
"""

from __future__ import annotations

import math

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import only_reader

__all__ = ["activation_of"]


def activation_of(tensor: gs.Tensor, outputs: list[gs.Tensor]) -> tuple[str, gs.Tensor] | None:
    """Recognise an activation of which every reader of a tensor is a part; None if there is none.

    Parameters
    ----------
    tensor
        The possible input of an activation.
    outputs
        The graph's outputs; a tensor inside an activation is not one of them.

    Returns
    -------
    tuple of str and Tensor, or None
        A key of ``ACTIVATIONS`` (``plugins/ops/quantized_matmul``) and the activation's output.
    """
    if any(output is tensor for output in outputs):
        return None
    return _one_node(tensor) or _silu(tensor, outputs) or _gelu_tanh(tensor, outputs)


def _one_node(tensor: gs.Tensor) -> tuple[str, gs.Tensor] | None:
    if len(tensor.outputs) != 1 or tensor.outputs[0].domain:
        return None
    node = tensor.outputs[0]
    if node.op == "Gelu":
        return "Gelu" if node.attrs.get("approximate", "none") == "none" else "GeluTanh", node.outputs[0]
    if node.op == "Relu" or (node.op == "Swish" and node.attrs.get("alpha", 1.0) == 1):
        return node.op, node.outputs[0]
    return None


def _silu(tensor: gs.Tensor, outputs: list[gs.Tensor]) -> tuple[str, gs.Tensor] | None:
    readers: dict[str, gs.Node] = {node.op: node for node in tensor.outputs}
    if len(tensor.outputs) != 2 or readers.keys() != {"Sigmoid", "Mul"}:
        return None
    sigmoid = readers["Sigmoid"].outputs[0]
    if only_reader(sigmoid, outputs) is not readers["Mul"] or not _reads(readers["Mul"], tensor, sigmoid):
        return None
    return "Swish", readers["Mul"].outputs[0]


def _gelu_tanh(tensor: gs.Tensor, outputs: list[gs.Tensor]) -> tuple[str, gs.Tensor] | None:
    readers: dict[str, gs.Node] = {node.op: node for node in tensor.outputs}
    if len(tensor.outputs) != 3 or readers.keys() != {"Mul", "Pow", "Add"} or not _has(readers["Mul"], 0.5):
        return None
    if readers["Pow"].inputs[0] is not tensor or not _has(readers["Pow"], 3.0):
        return None
    inner = readers["Pow"].outputs[0]
    steps = (("Mul", 0.044715), ("Add", None), ("Mul", math.sqrt(2 / math.pi)), ("Tanh", None), ("Add", 1.0))
    for op, number in steps:
        node = only_reader(inner, outputs)
        if node is None or node.op != op or (number is not None and not _has(node, number)):
            return None
        if number is None and op == "Add" and not _reads(node, inner, tensor):
            return None
        inner = node.outputs[0]
    half = readers["Mul"].outputs[0]
    product = only_reader(inner, outputs)
    if product is None or product.op != "Mul" or only_reader(half, outputs) is not product:
        return None
    return ("GeluTanh", product.outputs[0]) if _reads(product, inner, half) else None


def _reads(node: gs.Node, first: gs.Tensor, second: gs.Tensor) -> bool:
    a, b = node.inputs
    return (a is first and b is second) or (a is second and b is first)


def _has(node: gs.Node, number: float) -> bool:
    """True if one of the node's inputs is this constant."""
    found = [tensor.values for tensor in node.inputs if isinstance(tensor, gs.Constant)]
    return any(values.size == 1 and np.isclose(float(values.reshape(())), number, rtol=1e-6) for values in found)
