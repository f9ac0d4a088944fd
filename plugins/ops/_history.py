"""The text of function bodies that BeamAttention and BeamLatentAttention share: caches read through the ancestry."""

from __future__ import annotations

from tightbeam.plugins.ops._rotation import rotate
from tightbeam.plugins.ops._softmax import capped

__all__ = ["HISTORY", "MERGE", "gather", "rotations", "scores_and_weights"]

HISTORY = """
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    axis0 = Constant <value = int64[1] {0}> ()
    axis1 = Constant <value = int64[1] {1}> ()
    axis2 = Constant <value = int64[1] {2}> ()
    minus_one = Constant <value = int64[1] {-1}> ()

    lengths64 = Cast <to = 7> (lengths)
    T = ReduceMax <keepdims = 1> (lengths64)
    used_ancestry = Slice (ancestry, axis0, T, axis2)
    ancestry64 = Cast <to = 7> (used_ancestry)
    B = Shape <start = 0, end = 1> (ancestry)
    M = Shape <start = 1, end = 2> (ancestry)
    beams = Shape <start = 0, end = 2> (ancestry)
    lengths_column = Unsqueeze (lengths64, axis1)
    lengths_beams = Expand (lengths_column, beams)
    lengths_rows = Reshape (lengths_beams, minus_one)
    newest = Sub (lengths_rows, one)
    newest_column = Unsqueeze (newest, axis1)

    B_scalar = Squeeze (B)
    M_scalar = Squeeze (M)
    T_scalar = Squeeze (T)
    samples = Range (zero, B_scalar, one)
    first_row = Mul (samples, M_scalar)
    first_row_column = Unsqueeze (first_row, axis1)
    first_row_cube = Unsqueeze (first_row_column, axis2)
    source_row = Add (ancestry64, first_row_cube)
    rows_by_T = Concat <axis = 0> (minus_one, T)
    source_row_flat = Reshape (source_row, rows_by_T)
    source_row_heads = Unsqueeze (source_row_flat, axis1)

    positions = Range (zero, T_scalar, one)
    positions_row = Unsqueeze (positions, axis0)
    distance = Sub (newest_column, positions_row)
    written = GreaterOrEqual (distance, zero)
    window = Constant <value_int: int = @window> ()
    no_window = Equal (window, zero)
    near = Less (distance, window)
    inside = Or (no_window, near)
    seen = And (written, inside)
    axes12 = Constant <value = int64[2] {1, 2}> ()
    mask = Unsqueeze (seen, axes12)
"""
"""Text of T, ``source_row_heads`` [R, 1, T], ``newest`` [R], ``distance`` and ``seen`` [R, T] and ``mask`` [R, 1, 1, T]
from ``ancestry`` and ``lengths``. T is the longest length."""


def gather(prefix: str, cache: str) -> str:
    """Text of ``<prefix>_own`` [R, G, T, width]: each row's own history in ``cache`` [R, G, T_max, width]."""
    return f"""
    {prefix}_G = Shape <start = 1, end = 2> ({cache})
    {prefix}_room = Shape <start = 2, end = 3> ({cache})
    {prefix}_width = Shape <start = 3, end = 4> ({cache})
    {prefix}_G_scalar = Squeeze ({prefix}_G)
    {prefix}_heads = Range (zero, {prefix}_G_scalar, one)
    {prefix}_heads_column = Unsqueeze ({prefix}_heads, axis1)
    {prefix}_head_offset = Mul (source_row_heads, {prefix}_G)
    {prefix}_head_index = Add ({prefix}_head_offset, {prefix}_heads_column)
    {prefix}_position_offset = Mul ({prefix}_head_index, {prefix}_room)
    {prefix}_index = Add ({prefix}_position_offset, positions)
    {prefix}_flat_shape = Concat <axis = 0> (minus_one, {prefix}_width)
    {prefix}_flat = Reshape ({cache}, {prefix}_flat_shape)
    {prefix}_own = Gather <axis = 0> ({prefix}_flat, {prefix}_index)
"""


SCORES = """
    score_keys_t = Transpose <perm = [0, 1, 3, 2]> (score_keys)
    by_group = Concat <axis = 0> (minus_one, G, Q, K)
    grouped_query = Reshape (score_query, by_group)
    products = MatMul (grouped_query, score_keys_t)
    factor = Constant <value_float: float = @scale> ()
    factor_like = CastLike (factor, products)
    equal_scores = Mul (products, factor_like)
"""
"""Text of ``equal_scores`` [R, G, H / G, T] from ``score_query`` [R, H, 1, K] and ``score_keys`` [R, G, T, K]."""

UNSCALED = "    plain_scores = Identity (equal_scores)\n"
SCALED = """
    scales_t = Transpose <perm = [0, 1, 3, 2]> (scale_own)
    scales_like = CastLike (scales_t, equal_scores)
    plain_scores = Mul (equal_scores, scales_like)
"""
"""Text of ``plain_scores`` [R, G, Q, T]: ``equal_scores`` as they are, or times the keys' factors ``scale_own``
[R, G, T, 1]."""

BIAS = """
    safe_distance = Max (distance, zero)
    bias_by_head = Gather <axis = 1> (distance_bias, safe_distance)
    bias_by_row = Transpose <perm = [1, 0, 2]> (bias_by_head)
    bias_shape = Concat <axis = 0> (minus_one, G, Q, T)
    bias_grouped = Reshape (bias_by_row, bias_shape)
    bias_like = CastLike (bias_grouped, plain_scores)
    biased_scores = Add (plain_scores, bias_like)
"""

ROW_BIAS = """
    row_safe_distance = Max (distance, zero)
    row_distance = Unsqueeze (row_safe_distance, axis1)
    row_heads = Shape <start = 0, end = 2> (row_bias)
    row_distance_shape = Concat <axis = 0> (row_heads, T)
    row_distances = Expand (row_distance, row_distance_shape)
    row_bias_flat = GatherElements <axis = 2> (row_bias, row_distances)
    row_bias_shape = Concat <axis = 0> (minus_one, G, Q, T)
    row_bias_grouped = Reshape (row_bias_flat, row_bias_shape)
    row_bias_like = CastLike (row_bias_grouped, plain_scores)
    biased_scores = Add (plain_scores, row_bias_like)
"""

WEIGHTS = """
    lowest = Constant <value = float {-inf}> ()
    lowest_like = CastLike (lowest, biased_scores)
    scores = Where (mask, biased_scores, lowest_like)
    highest = ReduceMax <keepdims = 1> (scores, minus_one)
    shifted_scores = Sub (scores, highest)
    exponentials = Exp (shifted_scores)
    total = ReduceSum <keepdims = 1> (exponentials, minus_one)
    weights = Div (exponentials, total)
"""
"""Text of ``weights`` [R, G, Q, T], and of the row max ``highest`` and the row sum ``total``, which MERGE reads."""

MERGE = """
    log_total = Log (total)
    own_lse = Add (log_total, highest)
    lse_shape = Concat <axis = 0> (minus_one, G, Q, axis1)
    prefix_lse_like = CastLike (prefix_lse, own_lse)
    prefix_lse_grouped = Reshape (prefix_lse_like, lse_shape)
    higher = Max (own_lse, prefix_lse_grouped)
    own_below = Sub (own_lse, higher)
    prefix_below = Sub (prefix_lse_grouped, higher)
    own_part = Exp (own_below)
    prefix_part = Exp (prefix_below)
    parts = Add (own_part, prefix_part)
    own_share = Div (own_part, parts)
    prefix_share = Div (prefix_part, parts)
    prefix_shape = Concat <axis = 0> (minus_one, G, Q, output_width)
    prefix_grouped = Reshape (prefix_output, prefix_shape)
    own_weighted = Mul (own_output, own_share)
    prefix_weighted = Mul (prefix_grouped, prefix_share)
    joined = Add (own_weighted, prefix_weighted)
"""
"""Text of ``joined`` [R, G, Q, output_width]: the attention states of ``own_output`` and ``prefix_output``, merged."""


def scores_and_weights(present: frozenset[str]) -> str:
    """Text of ``weights`` from ``score_query`` and ``score_keys``. Raises ValueError if a node has two biases."""
    if {"distance_bias", "row_bias"} <= present:
        raise ValueError("has distance_bias and row_bias, expected one of them")
    bias = "    biased_scores = Identity (plain_scores)\n"
    if "distance_bias" in present:
        bias = BIAS
    elif "row_bias" in present:
        bias = ROW_BIAS
    scaled = capped(SCALED if "scale_cache" in present else UNSCALED, "plain_scores", present)
    return SCORES + scaled + bias + WEIGHTS


def rotations(present: frozenset[str], query: str, keys: str) -> str:
    """Text of ``score_query`` and ``score_keys`` from ``query`` [R, H, 1, K] and ``keys`` [R, G, T, K]."""
    if "cosines" not in present:
        return f"    score_query = Identity ({query})\n    score_keys = Identity ({keys})\n"
    first = "first_positions" in present
    return rotate("score_query", query, "newest_column", first) + rotate("score_keys", keys, "positions_row", first)
