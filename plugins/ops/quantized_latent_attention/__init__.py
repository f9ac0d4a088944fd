"""QuantizedLatentAttention: LatentAttention over states of 8-bit integers, each position with a scale of its own.

    row of the states = integers times scale

QuantizeRows makes each row of one position, so no row depends on another. The result is LatentAttention's over the
dequantized rows. The kernel splits queries and weights as QuantizedSourceAttention's kernel does.
"""

from __future__ import annotations

from tightbeam.plugins.ops._byte_rows import dequantized
from tightbeam.plugins.ops._softmax import KEY_BIAS
from tightbeam.plugins.ops.latent_attention import LATENT_ATTENTION
from tightbeam.plugins.schema import FLOAT, Input, Operator

__all__ = ["QUANTIZED_LATENT_ATTENTION"]

QUANTIZED_LATENT_ATTENTION = Operator(
    "QuantizedLatentAttention",
    "quantized_latent_attention",
    (
        Input("query", FLOAT, "B M, H, K", "queries, in the space of the states' heads"),
        Input("states_bytes", "int8", "B, N, G K", "keys and values at once, for all beams"),
        Input("states_scale", "float32", "B, N", "scale of a position's integers"),
        Input("mask", "bool", "B, N", "true for positions that count"),
        KEY_BIAS,
    ),
    LATENT_ATTENTION.outputs,
    lambda present: dequantized("states") + LATENT_ATTENTION.body(present),
    LATENT_ATTENTION.attributes,
    gpu=False,
)
