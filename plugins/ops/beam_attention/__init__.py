"""BeamAttention: self-attention over a cache that never moves, read through the beams' ancestry.

=========================  =========================  ========================================================
input                      type, shape                meaning
=========================  =========================  ========================================================
``projected``              float [R, H K + G (K+V)]   the new token's queries, key and value side by side
``key_cache``              float [R, G, T_max, K]     room for T_max positions of each beam slot
``value_cache``            float [R, G, T_max, V]     as the keys
``ancestry``               int32 [B, M, T]            which beam slot wrote position t of a beam's own history
``lengths``                int32 [B]                  tokens of the sample so far, the new one included, 1..T
``cosines``, optional      float32 [P, X]             rotation: the first 2 X numbers of a key head, in two halves
``sines``, optional        float32 [P, X]             as the cosines
``first_positions``, opt.  int32 [B]                  row of the tables at which the cache begins; 0 when missing
``distance_bias``, opt.    float32 [H, Y]             added to a score by its distance lengths - 1 - t
``prefix_output``, opt.     float [R, H V]             another attention's output, to be joined in one softmax
``prefix_lse``, optional    float32 [R, H]             log of the sum of the exponentials of its scores
``row_bias``, optional     float32 [R, H, Y]          in place of ``distance_bias``: each row's own
attribute ``scale``        float                      factor on the scores
attribute ``window``       int                        newest positions that count; 0, the default: all
output ``output``          float [R, H V]             attention over positions 0..lengths-1
``key_cache_out``          float [R, G, T_max, K]     the cache with the new row at position lengths-1
``value_cache_out``        float [R, G, T_max, V]     as the keys
=========================  =========================  ========================================================

Bind each cache's input and output to one buffer: the new row is then the only thing written. A beam update moves
nothing but ``ancestry``, whose newest entry is each beam's own slot. Head h reads key head h G / H. Keys are kept
unrotated and rotated when they are read. What a cache holds beyond ``lengths`` must be finite; it never counts.

A decoder-only model gives its prompt, which the beams share, to another attention (``source_attention``, or
``latent_attention`` and its projection), whose result is the prefix here. A position that a step sees but does not keep
(ProphetNet's predicting stream) is a prefix too, and so is the bias by row ProphetNet's: its queries weigh distances.
"""

from __future__ import annotations

from tightbeam.plugins.ops._history import HISTORY, JOIN, gather, rotations, scores_and_weights
from tightbeam.plugins.schema import Operator

__all__ = ["BEAM_ATTENTION", "FLOAT32_INPUTS", "OPTIONAL_INPUTS"]

OPTIONAL_INPUTS = ("cosines", "sines", "first_positions", "distance_bias", "prefix_output", "prefix_lse", "row_bias")
FLOAT32_INPUTS = ("cosines", "sines", "distance_bias", "prefix_lse", "row_bias")

SPLIT = """
    width = Shape <start = 1, end = 2> (projected)
    G = Shape <start = 1, end = 2> (key_cache)
    K = Shape <start = 3, end = 4> (key_cache)
    V = Shape <start = 3, end = 4> (value_cache)
    GK = Mul (G, K)
    GV = Mul (G, V)
    width_without_values = Sub (width, GV)
    HK = Sub (width_without_values, GK)
    H = Div (HK, K)
    Q = Div (H, G)
    parts_of_projected = Concat <axis = 0> (HK, GK, GV)
    flat_query, flat_key, flat_value = Split <axis = 1> (projected, parts_of_projected)
    query_shape = Concat <axis = 0> (minus_one, H, axis1, K)
    key_shape = Concat <axis = 0> (minus_one, G, axis1, K)
    value_shape = Concat <axis = 0> (minus_one, G, axis1, V)
    query = Reshape (flat_query, query_shape)
    key = Reshape (flat_key, key_shape)
    value = Reshape (flat_value, value_shape)
    key_cache_out = TensorScatter <axis = -2> (key_cache, key, newest)
    value_cache_out = TensorScatter <axis = -2> (value_cache, value, newest)
"""

PLAIN = """
    attended = Attention <scale: float = @scale> (score_query, score_keys, value_own, mask)
"""

EXPLICIT = """
    own_output = MatMul (weights, value_own)
    output_width = Identity (V)
"""

OUTPUT = """
    HV = Mul (H, V)
    output_shape = Concat <axis = 0> (minus_one, HV)
    output = Reshape (attended, output_shape)
"""


def _body(present: frozenset[str]) -> str:
    text = HISTORY + SPLIT + gather("key", "key_cache_out") + gather("value", "value_cache_out")
    text += rotations(present, "query", "key_own")
    if not present & {"distance_bias", "prefix_output", "row_bias"}:
        return text + PLAIN + OUTPUT
    join = JOIN if "prefix_output" in present else "    joined = Identity (own_output)\n"
    return text + scores_and_weights(present) + EXPLICIT + join + OUTPUT.replace("(attended,", "(joined,")


BEAM_ATTENTION = Operator(
    "BeamAttention",
    ("projected", "key_cache", "value_cache", "ancestry", "lengths", *OPTIONAL_INPUTS),
    ("output", "key_cache_out", "value_cache_out"),
    _body,
    optional=frozenset(OPTIONAL_INPUTS),
    float32=frozenset(FLOAT32_INPUTS),
    attributes=("scale", "window: int = 0"),
)
