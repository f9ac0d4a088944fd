"""Cases of QuantizedBeamTopK, and its definition in numpy.

Its logits are compared where all are computed. That its choice has the bits of the two operators is in
``test_quantized_beam_top_k.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.ops.beam_top_k import cases as beam_top_k
from tightbeam.plugins.ops.dynamic_quantize_matmul import cases as one_digit
from tightbeam.plugins.ops.split_rows_matmul import cases as two_digits

__all__ = ["cases", "exact", "product_of", "random_case"]

MATRIX = ("rows", "weights", "scale", "bias")


def random_case(
    seed: int,
    *,
    groups: int,
    B: int,
    M: int,
    vocabulary: int,
    split: bool = False,
    all_logits: bool = False,
    nodes: tuple[int, ...] = (),
    **search: Any,
) -> Case:
    """Random rows and a matrix, and BeamTopK's other inputs (``search``)."""
    product = one_digit.random_case(seed, R=B * M, groups=groups, Y=vocabulary)
    searched = beam_top_k.random_case(seed, B=B, M=M, vocabulary=vocabulary, nodes=nodes, **search)
    inputs = {name: product.inputs[name] for name in MATRIX}
    inputs |= {name: array for name, array in searched.inputs.items() if name != "logits"}
    name = f"{searched.name}-X{4 * groups}{'-split' * split}{'-all' * all_logits}"
    return Case(name, {**inputs, "all_logits": np.array(all_logits)}, {"split": 1} if split else {})


def cases() -> list[Case]:
    """Sizes of one, searches with all logits and without, the reasons to compute all, and rows of two digits."""
    masked = random_case(7, groups=4, B=1, M=2, vocabulary=900, C=2, T=3)
    masked.inputs["bias"][3:898] = -np.inf
    return [
        random_case(0, groups=1, B=1, M=1, vocabulary=1, C=1, T=1),
        random_case(1, groups=5, B=2, M=4, vocabulary=5003, C=8, T=9, P=3, n=2, ids=6),
        random_case(1, groups=5, B=2, M=4, vocabulary=5003, C=8, T=9, P=3, n=2, ids=6, all_logits=True),
        random_case(1, groups=16, B=5, M=4, vocabulary=603, C=8, T=9, n=2, ids=6),
        random_case(2, groups=9, B=3, M=1, vocabulary=2000, C=1, T=9, normalize=False),
        random_case(2, groups=9, B=3, M=1, vocabulary=2000, C=1, T=9, normalize=False, split=True),
        random_case(3, groups=4, B=1, M=4, vocabulary=300, C=8, T=6, n=1, ids=4),
        random_case(4, groups=4, B=1, M=2, vocabulary=4000, C=4, T=20, penalty=1.3),
        random_case(5, groups=4, B=1, M=2, vocabulary=4000, C=4, T=5, P=20),
        random_case(6, groups=4, B=1, M=2, vocabulary=4000, C=4, T=5, nodes=(1, 0)),
        random_case(8, groups=4, B=1, M=20, vocabulary=3000, C=40, T=4, n=1),
        masked,
    ]


def product_of(case: Case) -> Case:
    """The case of DynamicQuantizeMatMul, or of SplitRowsMatMul, with the same logits."""
    inputs = {name: case.inputs[name] for name in MATRIX}
    return Case(case.name, {**inputs, "addend": np.zeros((1, 1), np.float32)}, {"activation": 0})


def exact(case: Case, dtype: type = np.float64) -> dict[str, Array]:
    """The definition, in ``dtype``, with ``total`` of BeamTopK's. The rounding of the rows is part of it."""
    product = two_digits if case.attributes.get("split") else one_digit
    logits = product.exact(product_of(case), dtype)["products"]
    return {**beam_top_k.exact(Case(case.name, {**case.inputs, "logits": logits}), dtype), "logits": logits}
