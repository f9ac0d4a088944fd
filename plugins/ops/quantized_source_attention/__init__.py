"""QuantizedSourceAttention: SourceAttention over keys and values of 8-bit integers, each row with a scale of its own.

    key row = integers times key_scale, value row = integers times value_scale

QuantizeRows makes each row of a key or a value of one head at one position, so no row depends on another. The result is
SourceAttention's over the dequantized rows. The kernel multiplies integers: it splits each query into two rows of 8
bits, and each query's weights likewise. That keeps 15 bits of a query's largest number and 14 bits of its largest
weight (``cases.rounding``). Every instruction set gives the same bits.
"""

from __future__ import annotations

from tightbeam.plugins.ops._byte_rows import dequantized
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
        Input("key_scale", "float32", "B, G, N", "scale of a key's integers"),
        Input("value_bytes", "int8", "B, G, N, V", "as the keys"),
        Input("value_scale", "float32", "B, G, N", "scale of a value's integers"),
        Input("mask", "bool", "B, N", "true for positions that count; at least one, unless the node has lse"),
        KEY_BIAS,
    ),
    SOURCE_ATTENTION.outputs,
    lambda present: dequantized("key", "value") + SOURCE_ATTENTION.body(present),
    SOURCE_ATTENTION.attributes,
    gpu=False,
)
