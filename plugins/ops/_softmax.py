"""Softmax over masked scores, as text of a function body."""

from __future__ import annotations

__all__ = ["MASKED_SOFTMAX"]

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
"""Softmax of ``plain_scores`` under ``mask`` bool [B, N]: ``weights``, with ``highest`` and ``total`` for the lse.

The weights are 0 where the mask hides every position."""
