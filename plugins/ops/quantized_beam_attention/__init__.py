"""QuantizedBeamAttention: BeamAttention over caches of 8-bit integers, each row with a scale of its own.

    key row = integers times its scale, value row = integers times its scale

A row is the key or the value of one head at one position. QuantizeRows makes it once, when the step writes it, so no
row depends on another; the newest position is read as it is cached. The result is BeamAttention's over the dequantized
rows. The kernel multiplies floats by the integers as they are, with sums of one order: a row's result has the same bits
in every batch, whatever the other beams are, and on every instruction set.
"""

from __future__ import annotations

from tightbeam.plugins.ops._history import HISTORY, MERGE, gather, scores_and_weights
from tightbeam.plugins.ops.beam_attention import ATTRIBUTES, OUTPUT, SPLIT, WEIGHTED_VALUES, history_inputs
from tightbeam.plugins.schema import DOMAIN, FLOAT, Input, Operator, Output

__all__ = ["QUANTIZED_BEAM_ATTENTION"]

ROTATION = ("cosines", "sines", "first_positions")


def _cached(part: str, width: str) -> str:
    """Text of ``<part>_own`` [R, G, T, width], the dequantized history with the row that this step writes."""
    return f"""
    {part}_width = Concat <axis = 0> (minus_one, {width})
    {part}_rows = Reshape (flat_{part}, {part}_width)
    {part}_integers, {part}_row_scale = {DOMAIN}.QuantizeRows ({part}_rows)
    {part}_new = Reshape ({part}_integers, {part}_shape)
    {part}_new_scale = Reshape ({part}_row_scale, scale_shape)
    {part}_cache_out = TensorScatter <axis = -2> ({part}_cache, {part}_new, newest)
    {part}_scale_cache_out = TensorScatter <axis = -2> ({part}_scale_cache, {part}_new_scale, newest)
{gather(f"{part}_bytes", f"{part}_cache_out")}{gather(f"{part}_scale", f"{part}_scale_cache_out")}
    {part}_numbers = Cast <to = 1> ({part}_bytes_own)
    {part}_own32 = Mul ({part}_numbers, {part}_scale_own)
    {part}_own = CastLike ({part}_own32, projected)
"""


QUERY_AND_KEYS = """
    score_query = Identity (query)
    score_keys = Identity (key_own)
"""


def _body(present: frozenset[str]) -> str:
    scale_shape = "    scale_shape = Concat <axis = 0> (minus_one, G, axis1, axis1)\n"
    text = HISTORY + SPLIT + scale_shape + _cached("key", "K") + _cached("value", "V") + QUERY_AND_KEYS
    merge = MERGE if "prefix_output" in present else "    joined = Identity (own_output)\n"
    return text + scores_and_weights(present) + WEIGHTED_VALUES + merge + OUTPUT.replace("(attended,", "(joined,")


def _caches() -> tuple[Input, ...]:
    return (
        Input("key_cache", "int8", "B M, G, T_max, K", "capacity for T_max positions of each beam slot"),
        Input("key_scale_cache", "float32", "B M, G, T_max, 1", "scale of each key's integers"),
        Input("value_cache", "int8", "B M, G, T_max, V", "as the keys"),
        Input("value_scale_cache", "float32", "B M, G, T_max, 1", "scale of each value's integers"),
    )


QUANTIZED_BEAM_ATTENTION = Operator(
    "QuantizedBeamAttention",
    "quantized_beam_attention",
    (
        Input("projected", FLOAT, "B M, H K + G K + G V", "the new token's queries, key and value side by side"),
        *_caches(),
        *(entry for entry in history_inputs("H V") if entry.name not in ROTATION),
    ),
    (
        Output("output", FLOAT, "B M, H V", "attention over positions 0..lengths-1"),
        *(
            Output(f"{cache.name}_out", cache.type, cache.shape, "new row at position lengths-1", updates=cache.name)
            for cache in _caches()
        ),
    ),
    _body,
    ATTRIBUTES,
    gpu=False,
)
