"""Fold the residual of a post-norm layer into the product before it: y = x W + r.

    x - MatMul W - Add b -                                    x, W - Gemm(., ., r') -> y
    r = LayerNorm(., beta) - Add -> y                   ->    r' = LayerNorm(., beta + b)
                           - MatMul W' - Add b'                                     - MatMul W' - Add (b' - b W')

A runtime adds the last term of Gemm(x, W, r) for nothing, while an Add costs a pass over all rows. The bias b of that
product moves to the normalisation that r comes from, r' = r + b, and out of every product that reads it, in float64.

Needs: rows as matrices (``step_rows``), and r read by that Add and by products with weights alone. In a pre-norm
model r is a sum and not the output of a norm, so nothing matches. Saves time, no bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import Builder, read_instead, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassResult

NAME = "fold_residuals"


@dataclass(frozen=True)
class Residual:
    """``add`` = ``normed`` + product, the product being ``matmul`` + ``bias``."""

    add: gs.Node
    normed: gs.Tensor
    matmul: gs.Node
    bias: gs.Constant | None


def fold_residuals(graphs: ModelGraphs) -> PassResult:
    """Make one Gemm of each product, bias and residual of the decoder, in place."""
    decoder = graphs.decoder
    if not any(node.name.startswith("step_rows") for node in decoder.nodes):
        return PassResult(NAME, 0, "the decoder's rows are no matrices")
    build = Builder(decoder, NAME)
    matched = 0
    for node in [node for node in decoder.nodes if node.op == "Add"]:
        residual = _residual(node)
        if residual is not None:
            _fold(build, residual)
            matched += 1
    tidy(decoder)
    if not matched:
        return PassResult(NAME, 0, "no residual is the output of a normalisation: a pre-norm model")
    return PassResult(NAME, matched)


def _residual(add: gs.Node) -> Residual | None:
    for normed, product in (add.inputs, add.inputs[::-1]):
        if not normed.inputs or normed.inputs[0].op != "LayerNormalization" or len(normed.inputs[0].inputs) != 3:
            continue
        if len(product.outputs) != 1 or not product.inputs or not isinstance(normed.inputs[0].inputs[2], gs.Constant):
            continue
        matmul, bias = product.inputs[0], None
        if matmul.op == "Add":
            constant = [tensor for tensor in matmul.inputs if isinstance(tensor, gs.Constant)]
            inner = [tensor for tensor in matmul.inputs if not isinstance(tensor, gs.Constant)]
            if len(constant) != 1 or len(inner) != 1 or not inner[0].inputs or len(inner[0].outputs) != 1:
                continue
            bias, matmul = constant[0], inner[0].inputs[0]
        if _is_product(matmul) and all(reader is add or _reads_as_product(reader, normed) for reader in normed.outputs):
            return Residual(add, normed, matmul, bias)
    return None


def _is_product(node: gs.Node) -> bool:
    return node.op == "MatMul" and isinstance(node.inputs[1], gs.Constant)


def _reads_as_product(node: gs.Node, tensor: gs.Tensor) -> bool:
    return _is_product(node) and node.inputs[0] is tensor


def _fold(build: Builder, residual: Residual) -> None:
    normalization = residual.normed.inputs[0]
    dtype = residual.matmul.inputs[1].dtype
    if residual.bias is not None:
        b = np.asarray(residual.bias.values, dtype=np.float64).reshape(-1)
        beta = np.asarray(normalization.inputs[2].values, dtype=np.float64)
        normalization.inputs[2] = build.constant(beta + b, dtype)
        for reader in residual.normed.outputs:
            if reader is not residual.add:
                _shift(build, reader, -b @ np.asarray(reader.inputs[1].values, dtype=np.float64))
    joined = build.add("Gemm", [*residual.matmul.inputs, residual.normed])
    read_instead(residual.add.outputs[0], joined)


def _shift(build: Builder, matmul: gs.Node, by: np.ndarray[tuple[int], np.dtype[np.float64]]) -> None:
    """Add ``by`` to a product's bias, which is made if there is none."""
    product = matmul.outputs[0]
    dtype = matmul.inputs[1].dtype
    if len(product.outputs) == 1 and product.outputs[0].op == "Add":
        add = product.outputs[0]
        for index, tensor in enumerate(add.inputs):
            if isinstance(tensor, gs.Constant) and tensor.values.size == by.size:
                add.inputs[index] = build.constant(tensor.values.reshape(-1).astype(np.float64) + by, dtype)
                return
    readers = list(product.outputs)
    shifted = build.add("Add", [product, build.constant(by, dtype)])
    for node in readers:
        node.inputs = [shifted if tensor is product else tensor for tensor in node.inputs]
