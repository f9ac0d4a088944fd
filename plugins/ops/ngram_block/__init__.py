"""NGramBlock: -inf for every token that would repeat an n-gram of its row (FastSeq, Algorithm 1).

A window of n tokens blocks its last token if its first n-1 tokens equal the row's last n-1. All windows of all rows are
compared at once. At least one token of each is compared, since the shape of a reduction over no tokens differs between
runtimes. A window that does not match scatters +inf, which the minimum ignores.
"""

from __future__ import annotations

from tightbeam.plugins.schema import FLOAT, Input, Operator, Output

__all__ = ["NGRAM_BLOCK"]

BODY = """
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    axis0 = Constant <value = int64[1] {0}> ()
    axis1 = Constant <value = int64[1] {1}> ()
    last_axis = Constant <value = int64[1] {-1}> ()
    minus_inf = Constant <value = float {-inf}> ()
    plus_inf = Constant <value = float {inf}> ()

    width = Shape <start = 1, end = 2> (history)
    width_scalar = Squeeze (width)
    ends = Range (zero, width_scalar, one)
    longer_than_any = Add (width_scalar, one)
    n = Min (ngram_size, longer_than_any)
    two = Constant <value = int64 {2}> ()
    back_end = Max (n, two)
    back = Range (one, back_end, one)

    ends_column = Unsqueeze (ends, axis1)
    back_row = Unsqueeze (back, axis0)
    window_index = Sub (ends_column, back_row)
    window_index_safe = Max (window_index, zero)
    windows = Gather <axis = 1> (history, window_index_safe)

    lengths64 = Cast <to = 7> (lengths)
    lengths_column = Unsqueeze (lengths64, axis1)
    suffix_index = Sub (lengths_column, back_row)
    suffix_index_safe = Max (suffix_index, zero)
    suffix = GatherElements <axis = 1> (history, suffix_index_safe)
    suffix_row = Unsqueeze (suffix, axis1)

    same = Equal (windows, suffix_row)
    unlike = Not (same)
    compared = Less (back, n)
    different = And (unlike, compared)
    different_int = Cast <to = 6> (different)
    differences = ReduceSum <keepdims = 0> (different_int, last_axis)
    zero32 = Constant <value = int32 {0}> ()
    match = Equal (differences, zero32)

    ends_row = Unsqueeze (ends, axis0)
    inside = Less (ends_row, lengths_column)
    first_end = Sub (n, one)
    complete = GreaterOrEqual (ends_row, first_end)
    wanted = Greater (n, zero)
    valid_window = And (inside, complete)
    valid = And (valid_window, wanted)
    repeats = And (match, valid)

    low = CastLike (minus_inf, scores)
    high = CastLike (plus_inf, scores)
    updates = Where (repeats, low, high)
    blocked = ScatterElements <axis = 1, reduction = "min"> (scores, history, updates)
"""

NGRAM_BLOCK = Operator(
    "NGramBlock",
    "ngram_block",
    (
        Input("scores", FLOAT, "R, vocabulary", "scores of the next token"),
        Input("history", "int64", "R, T", "tokens of each row, left-aligned; ids below the vocabulary"),
        Input("lengths", "int32", "R", "tokens of the row that count, 1..T"),
        Input("ngram_size", "int64", "", "n; 0 blocks nothing", scalar=True),
    ),
    (Output("blocked", FLOAT, "R, vocabulary", "the scores, with -inf for blocked tokens", reuses="scores"),),
    lambda present: BODY,
)
