"""QuantizedSourceAttention: SourceAttention over keys and values of 8 bits, each row with a scale of its own.

    key row = integers times key_scale, value row = integers times value_scale

A row is what QuantizeRows makes of a key or a value of one head at one position, so no row depends on another. The
result is that of SourceAttention over the rows' worth. The kernel multiplies integers: it splits each query into two
rows of 8 bits, and likewise each query's weights, 15 and 14 bits of the largest number (``cases.rounding``).
"""

from __future__ import annotations

from tightbeam.plugins.ops._byte_rows import worth_of
from tightbeam.plugins.ops._softmax import KEY_BIAS
from tightbeam.plugins.ops.source_attention import SOURCE_ATTENTION
from tightbeam.plugins.schema import FLOAT, Input, Operator

__all__ = ["QUANTIZED_SOURCE_ATTENTION"]

QUANTIZED_SOURCE_ATTENTION = Operator(
    "QuantizedSourceAttention",
    "quantized_source_attention",
    (
        Input("query", FLOAT, "B M, H K", "queries of R = B x M rows"),
        Input("key_bytes", "int8", "B, G, N, K", "keys, once a sample, for all its beams"),
        Input("key_scale", "float32", "B, G, N", "worth of one of a key's integers"),
        Input("value_bytes", "int8", "B, G, N, V", "as the keys"),
        Input("value_scale", "float32", "B, G, N", "worth of one of a value's integers"),
        Input("mask", "bool", "B, N", "True where a position counts: one at least, unless there is lse"),
        KEY_BIAS,
    ),
    SOURCE_ATTENTION.outputs,
    lambda present: worth_of("key", "value") + SOURCE_ATTENTION.body(present),
    SOURCE_ATTENTION.attributes,
    gpu=False,
)
