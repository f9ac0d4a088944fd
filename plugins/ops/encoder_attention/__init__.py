"""EncoderAttention: self-attention of an encoder, over heads that lie side by side as the projections make them.

    output = softmax(scale (query . key) + distance_bias[key position - query position]) value

Positions that the mask hides are left out as keys, and their own output is 0. The kernel gives a sample the same bits
with any padding, and beside any other samples. The bias by distance is T5's; its [H, N, N] form is never made.
"""

from __future__ import annotations

from tightbeam.plugins.schema import FLOAT, Attribute, Input, Operator, Output

__all__ = ["ENCODER_ATTENTION"]

BIAS = """
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    axis0 = Constant <value = int64[1] {0}> ()
    axis1 = Constant <value = int64[1] {1}> ()
    size = Shape <start = 1, end = 2> (query)
    N = Squeeze (size)
    last = Sub (N, one)
    positions = Range (zero, N, one)
    column = Unsqueeze (positions, axis1)
    distances = Sub (positions, column)
    places = Add (distances, last)
    bias_by_head = Gather <axis = 1> (distance_bias, places)
    bias32 = Unsqueeze (bias_by_head, axis0)
    bias = CastLike (bias32, query)
"""

MASK = """
    axes12 = Constant <value = int64[2] {1, 2}> ()
    head = Constant <value = int64[1] {1}> ()
    samples = Shape <start = 0, end = 1> (mask)
    length = Shape <start = 1, end = 2> (mask)
    counted_shape = Concat <axis = 0> (samples, head, length, length)
    keys = Unsqueeze (mask, axes12)
    counted = Expand (keys, counted_shape)
"""

MASKED_BIAS = """
    lowest32 = Constant <value = float {-inf}> ()
    lowest = CastLike (lowest32, query)
    counted_bias = Where (counted, bias, lowest)
"""

ONLY_COUNTED_QUERIES = """
    last_axis = Constant <value = int64[1] {-1}> ()
    nothing32 = Constant <value = float {0}> ()
    nothing = CastLike (nothing32, attended)
    queries = Unsqueeze (mask, last_axis)
    output = Where (queries, attended, nothing)
"""


SPLIT = """
    same = Constant <value = int64[1] {0}> ()
    rest = Constant <value = int64[1] {-1}> ()
    heads = Constant <value_int: int = @heads> ()
    heads_list = Reshape (heads, rest)
    split = Concat <axis = 0> (same, same, heads_list, rest)
    query_split = Reshape (query, split)
    key_split = Reshape (key, split)
    value_split = Reshape (value, split)
    query_heads = Transpose <perm = [0, 2, 1, 3]> (query_split)
    key_heads = Transpose <perm = [0, 2, 1, 3]> (key_split)
    value_heads = Transpose <perm = [0, 2, 1, 3]> (value_split)
"""


def _body(present: frozenset[str]) -> str:
    masked, biased = "mask" in present, "distance_bias" in present
    added = "counted_bias" if masked and biased else "counted" if masked else "bias" if biased else ""
    # These are the nodes of a traced encoder, so that a runtime without the kernel computes what it did before.
    attend = f"""
    by_heads = Attention <scale: float = @scale> (query_heads, key_heads, value_heads{", " * bool(added)}{added})
    by_positions = Transpose <perm = [0, 2, 1, 3]> (by_heads)
    shape = Shape (value)
    {"attended" if masked else "output"} = Reshape (by_positions, shape)
"""
    parts = [SPLIT, BIAS * biased, MASK * masked, MASKED_BIAS * (masked and biased), attend]
    return "".join(parts) + ONLY_COUNTED_QUERIES * masked


ENCODER_ATTENTION = Operator(
    "EncoderAttention",
    "encoder_attention",
    (
        Input("query", FLOAT, "B, N, width", "queries of all heads, side by side"),
        Input("key", FLOAT, "B, N, width", "keys"),
        Input("value", FLOAT, "B, N, value_width", "values"),
        Input("mask", "bool", "B, N", "true for positions that count", optional=True),
        Input(
            "distance_bias",
            "float32",
            "H, distances",
            "[H, 2 N - 1], added by the distances 1 - N to N - 1",
            optional=True,
        ),
    ),
    (Output("output", FLOAT, "B, N, value_width", "the attention; 0 at positions that do not count"),),
    _body,
    (Attribute("heads", "int", "number of heads"), Attribute("scale", "float", "factor on the scores")),
    gpu=False,
)
