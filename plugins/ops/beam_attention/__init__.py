"""BeamAttention: self-attention over a cache that never moves, read through the beams' ancestry.

Bind each cache's input and output to one buffer: the new row is then the only thing written. A beam update moves
nothing but ``ancestry``, whose newest entry is each beam's own slot. Head h reads key head h G / H. Keys are cached
unrotated and rotated when they are read. What a cache holds beyond ``lengths`` must be finite; it never counts.

A decoder-only model gives its prompt, which the beams share, to another attention (``source_attention``, or
``latent_attention`` and its projection), whose attention state is the prefix here. A position that a step sees but does
not cache (the two-stream self-attention of ProphetNet) is a prefix too. The bias by row is ProphetNet's as well, whose
queries weigh distances. Order of what makes a score: ``scale`` and factors of keys, ``softcap``, a bias. On a GPU a
node with ``softcap`` runs without tensor cores.
"""

from __future__ import annotations

from tightbeam.plugins.ops._history import HISTORY, MERGE, gather, rotations, scores_and_weights
from tightbeam.plugins.ops._softmax import SOFTCAP
from tightbeam.plugins.schema import FLOAT, Attribute, Input, Operator, Output

__all__ = ["ATTRIBUTES", "BEAM_ATTENTION", "history_inputs"]


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
    if not present & {"distance_bias", "prefix_output", "row_bias", "softcap"}:
        return text + PLAIN + OUTPUT
    merge = MERGE if "prefix_output" in present else "    joined = Identity (own_output)\n"
    return text + scores_and_weights(present) + EXPLICIT + merge + OUTPUT.replace("(attended,", "(joined,")


def history_inputs(width: str) -> tuple[Input, ...]:
    """The inputs that BeamAttention and BeamLatentAttention share; ``width``: of a row of the output."""
    return (
        Input("ancestry", "int32", "B, M, T", "beam slot that wrote position t of a beam's own history"),
        Input("lengths", "int32", "B", "tokens of the sample so far, the new one included, 1..T"),
        Input(
            "cosines", "float32", "P, X", "rotation: the first 2 X numbers of a key head, in two halves", optional=True
        ),
        Input("sines", "float32", "P, X", "as the cosines", optional=True),
        Input("first_positions", "int32", "B", "row of the tables where the cache begins; 0 if missing", optional=True),
        Input("distance_bias", "float32", "H, Y", "added to a score by its distance lengths - 1 - t", optional=True),
        Input("prefix_output", FLOAT, f"B M, {width}", "output of another attention, to be merged", optional=True),
        Input("prefix_lse", "float32", "B M, H", "log-sum-exp of the scores of that attention", optional=True),
        Input("row_bias", "float32", "B M, H, Y", "distance_bias of each row, in its place", optional=True),
    )


ATTRIBUTES = (
    Attribute("scale", "float", "factor on the scores"),
    Attribute("window", "int", "newest positions that count; 0: all", default=0),
    SOFTCAP,
)

BEAM_ATTENTION = Operator(
    "BeamAttention",
    "beam_attention",
    (
        Input("projected", FLOAT, "B M, H K + G K + G V", "the new token's queries, key and value side by side"),
        Input("key_cache", FLOAT, "B M, G, T_max, K", "capacity for T_max positions of each beam slot"),
        Input("value_cache", FLOAT, "B M, G, T_max, V", "as the keys"),
        *history_inputs("H V"),
    ),
    (
        Output("output", FLOAT, "B M, H V", "attention over positions 0..lengths-1"),
        Output("key_cache_out", FLOAT, "B M, G, T_max, K", "new row at position lengths-1", updates="key_cache"),
        Output("value_cache_out", FLOAT, "B M, G, T_max, V", "as the keys", updates="value_cache"),
    ),
    _body,
    ATTRIBUTES,
)
