"""PromptAttention: causal self-attention of a prompt, or of a part of it behind keys and values that are cached.

    query n of sample b is at position p = starts[b] + n, and sees the positions j of p - window + 1 to p
    output = softmax(softcap(scale query . key[j]) + key_bias[j]) value[j]

Keys and values are those of all positions from 0 on, in a buffer that may be longer; what is behind the last query is
not read by the kernel, but has to be finite for the function. Head h reads key head h G / H. Scores exist for a block
of keys at a time, never as [N, positions]. The kernel gives a query the same bits beside any other queries.
"""

from __future__ import annotations

from tightbeam.plugins.ops._softmax import SOFTCAP
from tightbeam.plugins.schema import FLOAT, Attribute, Input, Operator, Output

__all__ = ["PROMPT_ATTENTION"]

SEEN = """
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    axis0 = Constant <value = int64[1] {0}> ()
    axis1 = Constant <value = int64[1] {1}> ()
    axes12 = Constant <value = int64[2] {1, 2}> ()
    rows_size = Shape <start = 2, end = 3> (query)
    keys_size = Shape <start = 2, end = 3> (key)
    rows_count = Squeeze (rows_size)
    keys_count = Squeeze (keys_size)
    rows = Range (zero, rows_count, one)
    keys = Range (zero, keys_count, one)
    column = Unsqueeze (rows, axis1)
"""

STARTS = """
    first = Unsqueeze (starts, axes12)
    places = Add (first, column)
"""

NO_STARTS = """
    places = Unsqueeze (column, axis0)
"""

AGES = """
    ages = Sub (places, keys)
    earlier = GreaterOrEqual (ages, zero)
"""

WINDOW = """
    window = Constant <value_int: int = @window> ()
    unlimited = Equal (window, zero)
    recent = Less (ages, window)
    near = Or (recent, unlimited)
    near_earlier = And (earlier, near)
"""

KEY_BIAS = """
    biases = Shape <start = 1, end = 2> (key_bias)
    biases_count = Squeeze (biases)
    last_bias = Sub (biases_count, one)
    own_keys = Min (keys, last_bias)
    bias_by_head = Gather <axis = 1> (key_bias, own_keys)
    bias3 = Unsqueeze (bias_by_head, axis1)
    bias4 = Unsqueeze (bias3, axis0)
    bias = CastLike (bias4, query)
    lowest32 = Constant <value = float {-inf}> ()
    lowest = CastLike (lowest32, query)
    mask = Where (seen, bias, lowest)
"""

OUTPUT = """
    by_positions = Transpose <perm = [0, 2, 1, 3]> (by_heads)
    same = Constant <value = int64[3] {0, 0, -1}> ()
    output = Reshape (by_positions, same)
"""


def _body(present: frozenset[str]) -> str:
    # ONNX's Attention, as a traced prompt has it, so that a runtime without the kernel computes what it did before: a
    # whole prompt without window and bias has no mask, which GPUs need for their fastest kernels.
    cap = ", softcap: float = @softcap" if "softcap" in present else ""
    if present.isdisjoint({"starts", "key_bias", "window"}):
        return f"    by_heads = Attention <scale: float = @scale{cap}, is_causal = 1> (query, key, value)\n{OUTPUT}"
    mask = "mask" if "key_bias" in present else "seen"
    attend = f"    by_heads = Attention <scale: float = @scale{cap}> (query, key, value, {mask})\n"
    starts = STARTS if "starts" in present else NO_STARTS
    windowed = "window" in present
    seen = f"    seen = Unsqueeze ({'near_earlier' if windowed else 'earlier'}, axis1)\n"
    return SEEN + starts + AGES + WINDOW * windowed + seen + KEY_BIAS * ("key_bias" in present) + attend + OUTPUT


PROMPT_ATTENTION = Operator(
    "PromptAttention",
    "prompt_attention",
    (
        Input("query", FLOAT, "B, H, N, K", "queries"),
        Input("key", FLOAT, "B, G, positions, K", "keys of all positions up to the last query's, at least"),
        Input("value", FLOAT, "B, G, positions, V", "values"),
        Input("starts", "int64", "B", "position of the first query; 0 if missing", optional=True),
        Input(
            "key_bias",
            "float32",
            "H, Y",
            "number j is added to the scores of position j; as many as positions are seen, at least",
            optional=True,
        ),
    ),
    (Output("output", FLOAT, "B, N, H V", "the attention, heads side by side"),),
    _body,
    (
        Attribute("scale", "float", "factor on the scores"),
        Attribute("window", "int", "how many of the newest positions a query sees; 0: all", default=0, switch=True),
        SOFTCAP,
    ),
    gpu=False,
)
