"""ScreenedQuantizedMatMul: the logits of a greedy step in int8, from a part of each row unless a token may be the best.

    head = rows directions                      K numbers of a row in place of X
    estimate = head integers integer_scale + bias
    |estimate - logit| <= the bound             proven for each tile of 16 columns
    logit = rows weights scale + bias           for the best estimates and all that reach their logits

Rows of the last layer of a trained model lie near a space of few directions, so the K products with these directions
leave little of a row: its distance from that space is known, and so by the inequality of Cauchy and Schwarz is the most
that it can add to a logit. ``directions`` are orthonormal; the fewer there are, the fewer products an estimate takes,
and the wider is the bound. An export chooses them on real rows (``export/accuracy/screen_choice.py``).

Other tokens keep their estimates, which are below the best C logits. A logit that is computed has the bits of
DynamicQuantizeMatMul, or of SplitRowsMatMul with ``split``. Which tokens may be left out, and when all logits are
computed, is as for ScreenedLinear. ``layout.py`` derives the bound.
"""

from __future__ import annotations

from tightbeam.plugins.ops.screened_linear import SEARCH_INPUTS
from tightbeam.plugins.schema import Attribute, Input, Operator, Output, Present

__all__ = ["SCREENED_QUANTIZED_MATMUL"]


def _body(present: Present) -> str:
    product = "SplitRowsMatMul" if "split" in present else "DynamicQuantizeMatMul"
    return f"""
    nothing = Constant <value = float[1,1] {{0}}> ()
    logits = tightbeam.{product} <activation = 0> (rows, weights, scale, bias, nothing)
"""


SCREENED_QUANTIZED_MATMUL = Operator(
    "ScreenedQuantizedMatMul",
    "screened_quantized_matmul",
    (
        Input("rows", "float32", "B M, 4 groups", "rows of X numbers"),
        Input("weights", "uint8", "tiles, groups, 16, 4", "the matrix in integers plus 128, as of QuantizedMatMul"),
        Input("scale", "float32", "1, vocabulary", "scale of each column"),
        Input("bias", "float32", "vocabulary", "added to each row; finite or -inf"),
        Input("directions", "float32", "screens, 4 groups, 16", "orthonormal columns in tiles of 16, as of Linear"),
        Input("integers", "uint8", "tiles, 4 screens, 16, 4", "the columns along the directions, as `weights`"),
        Input("integer_scale", "float32", "vocabulary", "scale of each column's integers"),
        Input("error", "float32", "4, tiles", "for length 1 of a head, of the rest, of its rounding; fixed"),
        *SEARCH_INPUTS,
    ),
    (Output("logits", "float32", "B M, vocabulary", "the logits, or estimates of tokens below the best C"),),
    _body,
    (Attribute("split", "int", "1: rows keep 15 bits, as those of SplitRowsMatMul", default=0, switch=True),),
    may_be_zero=("P",),
    gpu=False,
)
