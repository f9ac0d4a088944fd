"""BeamLatentAttention: BeamAttention over cached rows that are keys and values at once (Slim attention, option 2).

A head's scores come from its own part of the row. Its values are whole rows; after the softmax, W_KV,i or W_V,i makes
the head's value of their weighted sum. Everything else is as in ``beam_attention``.
"""

from __future__ import annotations

from tightbeam.plugins.ops._history import HISTORY, MERGE, gather, rotations, scores_and_weights
from tightbeam.plugins.ops.beam_attention import ATTRIBUTES, history_inputs
from tightbeam.plugins.schema import FLOAT, Input, Operator, Output

__all__ = ["BEAM_LATENT_ATTENTION"]

WRITE = """
    width = Shape <start = 1, end = 2> (query)
    G = Shape <start = 1, end = 2> (cache)
    K = Shape <start = 3, end = 4> (cache)
    GK = Mul (G, K)
    H = Div (width, K)
    Q = Div (H, G)
    query_shape = Concat <axis = 0> (minus_one, H, axis1, K)
    row_shape = Concat <axis = 0> (minus_one, G, axis1, K)
    query_by_head = Reshape (query, query_shape)
    row_by_head = Reshape (row, row_shape)
    cache_out = TensorScatter <axis = -2> (cache, row_by_head, newest)
"""

WRITE_SCALES = """
    scales_shape = Concat <axis = 0> (minus_one, G, axis1, axis1)
    scales_by_head = Reshape (row_scales, scales_shape)
    scale_cache_out = TensorScatter <axis = -2> (scale_cache, scales_by_head, newest)
"""

ATTEND = """
    weights_shape = Concat <axis = 0> (minus_one, H, T)
    weights_by_head = Reshape (weights, weights_shape)
    own_by_position = Transpose <perm = [0, 2, 1, 3]> (cache_own)
    values_shape = Concat <axis = 0> (minus_one, T, GK)
    values = Reshape (own_by_position, values_shape)
    latent = MatMul (weights_by_head, values)
    latent_shape = Concat <axis = 0> (minus_one, G, Q, GK)
    own_output = Reshape (latent, latent_shape)
    output_width = Identity (GK)
"""

OUTPUT = """
    HGK = Mul (H, GK)
    output_shape = Concat <axis = 0> (minus_one, HGK)
    output = Reshape (joined, output_shape)
"""


def _body(present: frozenset[str]) -> str:
    text = HISTORY + WRITE + gather("cache", "cache_out") + rotations(present, "query_by_head", "cache_own")
    if "scale_cache" in present:
        text += WRITE_SCALES + gather("scale", "scale_cache_out")
    merge = MERGE if "prefix_output" in present else "    joined = Identity (own_output)\n"
    return text + scores_and_weights(present) + ATTEND + merge + OUTPUT


BEAM_LATENT_ATTENTION = Operator(
    "BeamLatentAttention",
    "beam_latent_attention",
    (
        Input("query", FLOAT, "B M, H K", "the new token's queries"),
        Input("row", FLOAT, "B M, G K", "the new token's keys (K form), or its input x (X form, G = 1)"),
        Input("cache", FLOAT, "B M, G, T_max, K", "capacity for T_max positions of each beam slot"),
        *history_inputs("H G K"),
        Input(
            "row_scales", "float32", "B M, G", "factor of the new row's scores, from its norm, by head", optional=True
        ),
        Input("scale_cache", "float32", "B M, G, T_max, 1", "the same factor of each cached position", optional=True),
    ),
    (
        Output("output", FLOAT, "B M, H G K", "each head's weighted sum of whole rows, unrotated"),
        Output("cache_out", FLOAT, "B M, G, T_max, K", "new row at position lengths-1", updates="cache"),
        Output("scale_cache_out", "float32", "B M, G, T_max, 1", "as the rows", optional=True, updates="scale_cache"),
    ),
    _body,
    ATTRIBUTES,
)
