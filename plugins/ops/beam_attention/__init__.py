"""BeamAttention: self-attention over a cache that never moves, read through the beams' ancestry.

    score = softcap(scale (query . key) key factor) + bias
    output = softmax(score over the beam's own history, merged with the prefix) value

``ancestry`` is also known as the cache indirection. Bind each cache's input and output to one buffer: a step then
writes the new row only. A beam update changes only ``ancestry``, whose newest entry is each beam's own slot. Head h
reads key head h G / H. Keys are cached before their rotation, and rotated when they are read. Positions of a cache
beyond ``lengths`` do not count, but their numbers must be finite.

The prefix is the attention state of other positions, which is merged with this one. In a decoder-only model it is the
prompt's, which the beams share: ``source_attention``, or ``latent_attention`` and its projection, makes it. A position
that a step sees but does not cache is a prefix too (the two-stream self-attention of ProphetNet). ``row_bias`` is
ProphetNet's as well, whose queries weigh distances.

On a GPU, a node with ``softcap`` runs without tensor cores.
"""

from __future__ import annotations

from tightbeam.plugins.ops._history import HISTORY, MERGE, gather, rotations, scores_and_weights
from tightbeam.plugins.ops._softmax import SOFTCAP
from tightbeam.plugins.schema import FLOAT, Attribute, Input, Operator, Output

__all__ = ["ATTRIBUTES", "BEAM_ATTENTION", "OUTPUT", "SPLIT", "WEIGHTED_VALUES", "history_inputs"]

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
"""

WRITE = """
    key = Reshape (flat_key, key_shape)
    value = Reshape (flat_value, value_shape)
    key_cache_out = TensorScatter <axis = -2> (key_cache, key, newest)
    value_cache_out = TensorScatter <axis = -2> (value_cache, value, newest)
"""

ONNX_ATTENTION = """
    attended = Attention <scale: float = @scale> (score_query, score_keys, value_own, mask)
"""

WEIGHTED_VALUES = """
    own_output = MatMul (weights, value_own)
    output_width = Identity (V)
"""

OUTPUT = """
    HV = Mul (H, V)
    output_shape = Concat <axis = 0> (minus_one, HV)
    output = Reshape (attended, output_shape)
"""


def _body(present: frozenset[str]) -> str:
    text = HISTORY + SPLIT + WRITE + gather("key", "key_cache_out") + gather("value", "value_cache_out")
    text += rotations(present, "query", "key_own")
    if not present & {"distance_bias", "prefix_output", "row_bias", "softcap"}:
        return text + ONNX_ATTENTION + OUTPUT
    merge = MERGE if "prefix_output" in present else "    joined = Identity (own_output)\n"
    return text + scores_and_weights(present) + WEIGHTED_VALUES + merge + OUTPUT.replace("(attended,", "(joined,")


def history_inputs(width: str) -> tuple[Input, ...]:
    """List the inputs that BeamAttention and BeamLatentAttention share.

    Parameters
    ----------
    width
        Width of a row of the output, in letters.

    Returns
    -------
    tuple of Input
        From the ancestry to the bias of each row.
    """
    return (
        Input("ancestry", "int32", "B, M, T", "the beam slot that wrote position t of a beam's own history"),
        Input("lengths", "int32", "B", "tokens of the sample so far, with the new one, 1..T"),
        Input(
            "cosines", "float32", "P, X", "rotation: the first 2 X numbers of a key head, in two halves", optional=True
        ),
        Input("sines", "float32", "P, X", "as the cosines", optional=True),
        Input(
            "first_positions", "int32", "B", "the tables' row for position 0 of the cache; 0 if missing", optional=True
        ),
        Input("distance_bias", "float32", "H, Y", "added to a score, by the distance lengths - 1 - t", optional=True),
        Input(
            "prefix_output",
            FLOAT,
            f"B M, {width}",
            "output of another attention, to merge with this one",
            optional=True,
        ),
        Input("prefix_lse", "float32", "B M, H", "log-sum-exp of that attention's scores", optional=True),
        Input("row_bias", "float32", "B M, H, Y", "in place of distance_bias: one for each row", optional=True),
    )


ATTRIBUTES = (
    Attribute("scale", "float", "factor on the scores"),
    Attribute("window", "int", "how many of the newest positions count; 0: all", default=0),
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
