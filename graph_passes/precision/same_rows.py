"""Tensors that differ in the last axis alone, found without shape inference, which loses the names of dimensions."""

from __future__ import annotations

import onnx_graphsurgeon as gs

__all__ = ["same_rows"]

ROW_BY_ROW = frozenset({"LayerNormalization", "RMSNormalization", "EncoderAttention", "Gelu", "Relu"})
"""Operators whose first output has the rows of their first input. Products with constant matrices do too."""


def same_rows(graph: gs.Graph) -> dict[str, str]:
    """Map each tensor to the earliest tensor from which it is computed row by row; only the last axis may differ.

    Parameters
    ----------
    graph
        In order of execution.

    Returns
    -------
    dict
        By a tensor's name, the name of the first tensor whose sizes differ in the last axis alone. A tensor that is
        missing is the first itself.
    """
    first: dict[str, str] = {}
    for node in graph.nodes:
        rows = [first.get(tensor.name, tensor.name) for tensor in node.inputs if not _is_vector(tensor)]
        if _is_product(node) or node.op in ROW_BY_ROW or (node.op == "Add" and len(set(rows)) == 1):
            first[node.outputs[0].name] = rows[0]
    return first


def _is_product(node: gs.Node) -> bool:
    """True for a product that keeps the rows of its first input."""
    if node.op not in ("MatMul", "Gemm") or node.domain or node.attrs.get("transA", 0):
        return False
    rows, weight = node.inputs[:2]
    return isinstance(weight, gs.Constant) and len(weight.shape) == 2 and not isinstance(rows, gs.Constant)


def _is_vector(tensor: gs.Tensor) -> bool:
    """True for a constant that is added to every row."""
    return isinstance(tensor, gs.Constant) and len(tensor.shape) <= 1
