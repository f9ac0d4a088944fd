"""LatentAttention: scores and values from one shared matrix (EL-attention, section 3.1; Slim attention, option 2).

========================  ==================  ==========================================================
input                     type, shape         meaning
========================  ==================  ==========================================================
``query``                 float [B, Q, D]     Q = M x H queries of a sample, in the space of the states
``states``                float [B, N, D]     what is attended to, keys and values at once
``mask``                  bool [B, N]         True where a position counts; one at least per sample
attribute ``scale``       float               factor on the scores
output ``output``         float [B, Q, D]     softmax(scale x query x states^T) x states
========================  ==================  ==========================================================
"""

LATENT_ATTENTION = """
LatentAttention <scale> (query, states, mask) => (output) {
    axis1 = Constant <value = int64[1] {1}> ()
    zero = Constant <value = float {0}> ()
    lowest = Constant <value = float {-3.4028234663852886e38}> ()

    mask_row = Unsqueeze (mask, axis1)
    zero_like = CastLike (zero, query)
    lowest_like = CastLike (lowest, query)
    bias = Where (mask_row, zero_like, lowest_like)

    factor = Constant <value_float: float = @scale> ()
    factor_like = CastLike (factor, query)
    states_t = Transpose <perm = [0, 2, 1]> (states)
    products = MatMul (query, states_t)
    scores = Mul (products, factor_like)
    masked = Add (scores, bias)
    weights = Softmax <axis = -1> (masked)
    output = MatMul (weights, states)
}
"""
