"""LatentAttention: scores and values from one shared matrix (EL-attention, section 3.1; Slim attention, option 2).

    score = softcap(scale (query . key) key_scale) + key_bias
    output = softmax(score) states

In the EL and the X form there is one key head as wide as the states: G = 1 and K = D. In the K form G = H, and a head's
scores come from its own part of the row. All M x H queries of a sample multiply one matrix, which is read once.

For the scores, but not for the values, position n is rotated by row n of the tables; the queries are rotated before the
operator. If no position counts, ``output`` is 0 and ``lse`` -inf. On a GPU, a node with ``softcap`` or ``key_bias``
runs without tensor cores.
"""

from __future__ import annotations

from tightbeam.plugins.ops._rotation import rotate
from tightbeam.plugins.ops._softmax import KEY_BIAS, MASKED_SOFTMAX, SOFTCAP, capped, key_biased
from tightbeam.plugins.schema import FLOAT, Attribute, Input, Operator, Output

__all__ = ["LATENT_ATTENTION"]

QUERIES = """
    axis1 = Constant <value = int64[1] {1}> ()
    minus_one = Constant <value = int64[1] {-1}> ()
    H = Shape <start = 1, end = 2> (query)
    K = Shape <start = 2, end = 3> (query)
    R = Shape <start = 0, end = 1> (query)
    B = Shape <start = 0, end = 1> (states)
    N = Shape <start = 1, end = 2> (states)
    E = Shape <start = 2, end = 3> (states)
    M = Div (R, B)
    G = Div (E, K)
    Q = Div (H, G)
    MQ = Mul (M, Q)
    GMQ = Mul (G, MQ)

    by_head_shape = Concat <axis = 0> (B, M, G, Q, K)
    by_head = Reshape (query, by_head_shape)
    by_group = Transpose <perm = [0, 2, 1, 3, 4]> (by_head)
    queries_shape = Concat <axis = 0> (B, G, MQ, K)
    queries = Reshape (by_group, queries_shape)
    states_shape = Concat <axis = 0> (B, N, G, K)
    states_by_head = Reshape (states, states_shape)
"""

UNROTATED_KEYS = """
    keys_t = Transpose <perm = [0, 2, 3, 1]> (states_by_head)
"""

ROTATED_KEYS = (
    """
    axis0 = Constant <value = int64[1] {0}> ()
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    N_scalar = Squeeze (N)
    places = Range (zero, N_scalar, one)
    places_row = Unsqueeze (places, axis0)
    keys = Transpose <perm = [0, 2, 1, 3]> (states_by_head)
"""
    + rotate("turned_keys", "keys", "places_row", first_positions=False)
    + """
    keys_t = Transpose <perm = [0, 1, 3, 2]> (turned_keys)
"""
)

PRODUCTS = """
    products = MatMul (queries, keys_t)
    factor = Constant <value_float: float = @scale> ()
    factor_like = CastLike (factor, products)
    equal_scores = Mul (products, factor_like)
"""

UNSCALED_SCORES = """
    plain_scores = Identity (equal_scores)
"""

SCALED_SCORES = """
    axis2 = Constant <value = int64[1] {2}> ()
    key_scales_like = CastLike (key_scales, equal_scores)
    key_scales_rows = Unsqueeze (key_scales_like, axis2)
    plain_scores = Mul (equal_scores, key_scales_rows)
"""

ATTEND = """
    weights_shape = Concat <axis = 0> (B, GMQ, N)
    weights_by_sample = Reshape (weights, weights_shape)
    latent = MatMul (weights_by_sample, states)
    latent_shape = Concat <axis = 0> (B, G, M, Q, E)
    latent_by_group = Reshape (latent, latent_shape)
    latent_by_head = Transpose <perm = [0, 2, 1, 3, 4]> (latent_by_group)
    output_shape = Concat <axis = 0> (R, H, E)
    output = Reshape (latent_by_head, output_shape)
"""

LSE = """
    log_total = Log (total)
    lse_grouped = Add (log_total, highest)
    lse_group_shape = Concat <axis = 0> (B, G, M, Q)
    lse_by_group = Reshape (lse_grouped, lse_group_shape)
    lse_by_head = Transpose <perm = [0, 2, 1, 3]> (lse_by_group)
    lse_shape = Concat <axis = 0> (R, H)
    lse_like = Reshape (lse_by_head, lse_shape)
    lse = Cast <to = 1> (lse_like)
"""


def _body(present: frozenset[str]) -> str:
    keys = ROTATED_KEYS if "cosines" in present else UNROTATED_KEYS
    scores = capped(SCALED_SCORES if "key_scales" in present else UNSCALED_SCORES, "plain_scores", present)
    scores = key_biased(scores, "plain_scores", present, beams_first=True)
    return QUERIES + keys + PRODUCTS + scores + MASKED_SOFTMAX + ATTEND + (LSE if "lse" in present else "")


LATENT_ATTENTION = Operator(
    "LatentAttention",
    "latent_attention",
    (
        Input("query", FLOAT, "B M, H, K", "queries, in the space of the states' heads"),
        Input("states", FLOAT, "B, N, G K", "keys and values at once, for all beams"),
        Input("mask", "bool", "B, N", "true for positions that count"),
        Input("cosines", "float32", "P, X", "rotation: the first 2 X numbers of a key head, P >= N", optional=True),
        Input("sines", "float32", "P, X", "as the cosines", optional=True),
        Input("key_scales", "float32", "B, G, N", "factor of a key head's scores, from its norm", optional=True),
        KEY_BIAS,
    ),
    (
        Output("output", FLOAT, "B M, H, G K", "each head's weighted sum of whole rows of the states"),
        Output("lse", "float32", "B M, H", "log-sum-exp of the scores", optional=True),
    ),
    _body,
    (
        Attribute("scale", "float", "factor on the scores"),
        Attribute("weight_threshold", "float", "as in SourceAttention", default=0.0),
        SOFTCAP,
    ),
)
