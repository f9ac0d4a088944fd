"""SourceAttention: attention over keys and values that the beams of a sample share (FastSeq, section 4.1).

    score = softcap(scale (query . key)) + key_bias
    output = softmax(score) value

Head h reads key head h G / H. If no position counts, ``output`` is 0 and ``lse`` -inf. With ``lse``, BeamAttention
merges this attention state into its own: it is then BeamAttention's prefix. On a GPU, a node with ``softcap`` or
``key_bias`` runs without tensor cores.

``weight_threshold`` permits an approximation (Slim attention, section 3): the value of a position need not be read if
no query gives the position that much weight. The softmax itself, and ``lse``, are over all positions. The CPU kernel
uses the permission; the CUDA kernels and the function below read every value.
"""

from __future__ import annotations

from tightbeam.plugins.ops._softmax import KEY_BIAS, MASKED_SOFTMAX, SOFTCAP, capped, key_biased
from tightbeam.plugins.schema import FLOAT, Attribute, Input, Operator, Output

__all__ = ["SOURCE_ATTENTION"]

BY_SAMPLE = """
    axis0 = Constant <value = int64[1] {0}> ()
    axis1 = Constant <value = int64[1] {1}> ()
    minus_one = Constant <value = int64[1] {-1}> ()
    B = Shape <start = 0, end = 1> (key)
    G = Shape <start = 1, end = 2> (key)
    K = Shape <start = 3, end = 4> (key)
    V = Shape <start = 3, end = 4> (value)
    R = Shape <start = 0, end = 1> (query)
    M = Div (R, B)
    width = Shape <start = 1, end = 2> (query)
    H = Div (width, K)
    HV = Mul (H, V)
    output_shape = Concat <axis = 0> (R, HV)
    by_beam_shape = Concat <axis = 0> (B, M, H, K)
    by_beam = Reshape (query, by_beam_shape)
    by_head = Transpose <perm = [0, 2, 1, 3]> (by_beam)
"""

ONNX_ATTENTION = """
    N = Shape <start = 1, end = 2> (mask)
    mask_shape = Concat <axis = 0> (B, axis1, M, N)
    axes12 = Constant <value = int64[2] {1, 2}> ()
    mask_cube = Unsqueeze (mask, axes12)
    mask_by_beam = Expand (mask_cube, mask_shape)
    attended = Attention <scale: float = @scale> (by_head, key, value, mask_by_beam)
    attended_by_beam = Transpose <perm = [0, 2, 1, 3]> (attended)
    output = Reshape (attended_by_beam, output_shape)
"""

SCORES = """
    Q = Div (H, G)
    QM = Mul (Q, M)
    grouped_shape = Concat <axis = 0> (B, G, QM, K)
    grouped = Reshape (by_head, grouped_shape)
    key_t = Transpose <perm = [0, 1, 3, 2]> (key)
    products = MatMul (grouped, key_t)
    factor = Constant <value_float: float = @scale> ()
    factor_like = CastLike (factor, products)
    plain_scores = Mul (products, factor_like)
"""

ATTEND_WITH_LSE = """    grouped_output = MatMul (weights, value)
    output_by_head_shape = Concat <axis = 0> (B, H, M, V)
    output_by_head = Reshape (grouped_output, output_by_head_shape)
    output_by_beam = Transpose <perm = [0, 2, 1, 3]> (output_by_head)
    output = Reshape (output_by_beam, output_shape)
    log_total = Log (total)
    lse_grouped = Add (log_total, highest)
    lse_by_head_shape = Concat <axis = 0> (B, H, M)
    lse_by_head = Reshape (lse_grouped, lse_by_head_shape)
    lse_by_beam = Transpose <perm = [0, 2, 1]> (lse_by_head)
    lse_shape = Concat <axis = 0> (R, H)
    lse_like = Reshape (lse_by_beam, lse_shape)
    lse = Cast <to = 1> (lse_like)
"""


def _body(present: frozenset[str]) -> str:
    if not present & {"lse", "softcap", "key_bias"}:
        return BY_SAMPLE + ONNX_ATTENTION
    scores = key_biased(capped(SCORES, "plain_scores", present), "plain_scores", present, beams_first=False)
    return BY_SAMPLE + scores + MASKED_SOFTMAX + ATTEND_WITH_LSE


SOURCE_ATTENTION = Operator(
    "SourceAttention",
    "source_attention",
    (
        Input("query", FLOAT, "B M, H K", "queries of R = B x M rows"),
        Input("key", FLOAT, "B, G, N, K", "keys, once a sample, for all its beams"),
        Input("value", FLOAT, "B, G, N, V", "as the keys"),
        Input("mask", "bool", "B, N", "true for positions that count; at least one, unless the node has lse"),
        KEY_BIAS,
    ),
    (
        Output("output", FLOAT, "B M, H V", "the attention over the positions that count"),
        Output("lse", "float32", "B M, H", "log-sum-exp of the scores", optional=True),
    ),
    _body,
    (
        Attribute("scale", "float", "factor on the scores"),
        Attribute("weight_threshold", "float", "weights below it may count as 0; 0: every weight counts", default=0.0),
        SOFTCAP,
    ),
)
