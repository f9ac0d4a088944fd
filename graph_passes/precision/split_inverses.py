"""Products with the inverse of a weight, as two matrices in half precision.

    c - MatMul(W)  ->  Concat(c, c) - MatMul([high; low]),  high = W rounded to half precision, low = W - high

Values that are made of cached keys (``k``, ``first-k``) are a product with W_K^+ W_V. Such a matrix has large numbers
of both signs, whose products cancel, so its own rounding errs more than that of the cache does. Two numbers in half
precision have twice the bits of one, and the products with both add up in float32, as those of any matrix do.

Needs: float32 graphs, before ``lower_precision``. Adds as many weights as these matrices have; saves nothing.
"""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.builder import INVERSE, Builder, tidy
from tightbeam.graph_passes.model import ModelGraphs, PassResult
from tightbeam.graph_passes.precision.lower_precision import LOW_TYPES

NAME = "split_inverses"


def split_inverses(graphs: ModelGraphs, precision: str) -> PassResult:
    """Split the matrices of the decoder that :meth:`Builder.inverse` made, in place.

    Parameters
    ----------
    graphs
        A variant's graphs in float32.
    precision
        One of ``LOW_TYPES``. A matrix beyond its range stays whole, and ``lower_precision`` refuses it.
    """
    build = Builder(graphs.decoder, NAME)
    matched = 0
    for node in list(graphs.decoder.nodes):
        if node.op != "MatMul" or not _is_inverse(node.inputs[1]):
            continue
        weight = node.inputs[1].values
        with np.errstate(over="ignore"):
            high = weight.astype(LOW_TYPES[precision]).astype(np.float32)
        if not np.isfinite(high).all():
            continue
        both = build.constant(np.concatenate([high, weight - high], axis=-2), np.float32)
        node.inputs = [build.add("Concat", [node.inputs[0]] * 2, {"axis": weight.ndim - 1}), both]
        matched += 1
    tidy(graphs.decoder)
    return PassResult(NAME, matched, "" if matched else "no values are made of keys")


def _is_inverse(tensor: gs.Tensor) -> bool:
    return isinstance(tensor, gs.Constant) and bool(tensor.name.endswith(f".{INVERSE}"))
