"""The cap and the bias of scores, and their softmax, in the text of function bodies."""

from __future__ import annotations

from tightbeam.plugins.schema import Attribute, Input

__all__ = ["KEY_BIAS", "MASKED_SOFTMAX", "SOFTCAP", "capped", "key_biased"]

SOFTCAP = Attribute(
    "softcap", "float", "c: a scaled score s becomes c tanh(s / c); 0: no cap", default=0.0, switch=True
)
"""Gemma 2's cap of the scores, before the bias and the mask."""
KEY_BIAS = Input("key_bias", "float32", "H, Y", "number n is added to the scores of position n; Y >= N", optional=True)
"""A bias by head and position of the key (ALiBi)."""

CAP = """
    cap = Constant <value_float: float = @softcap> ()
    cap_like = CastLike (cap, uncapped)
    parts_of_cap = Div (uncapped, cap_like)
    bounded = Tanh (parts_of_cap)
    $scores = Mul (bounded, cap_like)
"""
ADD_KEY_BIAS = """
    bias_from = Constant <value = int64[1] {0}> ()
    bias_to = Shape <start = -1> (unbiased)
    bias_used = Slice (key_bias, bias_from, bias_to, axis1)
    bias_heads_shape = Concat <axis = 0> (axis1, G, $heads, bias_to)
    bias_heads = Reshape (bias_used, bias_heads_shape)
    bias_beams_shape = Concat <axis = 0> (axis1, G, $beams, bias_to)
    bias_beams = Expand (bias_heads, bias_beams_shape)
    bias_shape = Concat <axis = 0> (axis1, G, minus_one, bias_to)
    bias_rows = Reshape (bias_beams, bias_shape)
    bias_like = CastLike (bias_rows, unbiased)
    $scores = Add (unbiased, bias_like)
"""


def capped(text: str, scores: str, present: frozenset[str]) -> str:
    """``text``, which makes ``scores``, followed by their cap if a node has the attribute softcap."""
    if "softcap" not in present:
        return text
    return text.replace(f"    {scores} = ", "    uncapped = ") + CAP.replace("$scores", scores)


def key_biased(text: str, scores: str, present: frozenset[str], *, beams_first: bool) -> str:
    """``text``, which makes ``scores`` [B, G, X, N], followed by the bias if a node has the input key_bias.

    The X = M H / G queries are in the order beam, head if ``beams_first`` is true, else head, beam.
    """
    if "key_bias" not in present:
        return text
    heads, beams = ("axis1, Q", "M, Q") if beams_first else ("Q, axis1", "Q, M")
    added = ADD_KEY_BIAS.replace("$heads", heads).replace("$beams", beams).replace("$scores", scores)
    return text.replace(f"    {scores} = ", "    unbiased = ") + added


MASKED_SOFTMAX = """    zero_level = Constant <value = float {0}> ()
    one_float = Constant <value = float {1}> ()
    lowest = Constant <value = float {-inf}> ()
    lowest_like = CastLike (lowest, plain_scores)
    axes12 = Constant <value = int64[2] {1, 2}> ()
    mask_cube = Unsqueeze (mask, axes12)
    scores = Where (mask_cube, plain_scores, lowest_like)
    highest = ReduceMax <keepdims = 1> (scores, minus_one)
    nothing = Equal (highest, lowest_like)
    level = CastLike (zero_level, highest)
    safe_highest = Where (nothing, level, highest)
    shifted = Sub (scores, safe_highest)
    exponentials = Exp (shifted)
    total = ReduceSum <keepdims = 1> (exponentials, minus_one)
    one_level = CastLike (one_float, total)
    safe_total = Where (nothing, one_level, total)
    weights = Div (exponentials, safe_total)
"""
"""Text of ``weights``, the softmax of ``plain_scores`` under ``mask`` bool [B, N], and of its row max ``highest`` and
row sum ``total``, which the lse needs. The weights are 0 if the mask hides every position."""
