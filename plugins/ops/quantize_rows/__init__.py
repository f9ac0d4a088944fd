"""QuantizeRows: each row of floats as 8-bit integers and a scale of its own.

    scale = m / 127
    quantized = round(x * (127 / m))        m: the largest magnitude of the row, at least 1e-30

Each row is quantised by itself, so the result of a sample does not depend on its batch. Ties round to the even integer,
and the integers are -127..127. A row with NaN or an infinite value gets zeros and the scale NaN, so that its products
are NaN.
"""

from __future__ import annotations

from tightbeam.plugins.schema import FLOAT, Input, Operator, Output

__all__ = ["QUANTIZE_ROWS"]

BODY = """
    last_axis = Constant <value = int64[1] {-1}> ()
    zero = Constant <value = float {0.0}> ()
    most = Constant <value = float {127.0}> ()
    smallest = Constant <value = float {1e-30}> ()

    rows32 = Cast <to = 1> (rows)
    nothing = Mul (rows32, zero)
    poison = ReduceSum <keepdims = 1> (nothing, last_axis)
    bad = IsNaN (poison)
    finite = Where (bad, zero, rows32)
    magnitudes = Abs (finite)
    largest = ReduceMax <keepdims = 1> (magnitudes, last_axis)
    bounded = Max (largest, smallest)
    factor = Div (most, bounded)
    multiples = Mul (finite, factor)
    rounded = Round (multiples)
    quantized = Cast <to = 3> (rounded)
    step = Div (bounded, most)
    scale = Add (step, poison)
"""

QUANTIZE_ROWS = Operator(
    "QuantizeRows",
    "quantize_rows",
    (Input("rows", FLOAT, "R, X", "rows of numbers"),),
    (
        Output("quantized", "int8", "R, X", "the rows as integers, -127..127"),
        Output("scale", "float32", "R, 1", "scale of each row's integers; NaN if the row has NaN or an infinite value"),
    ),
    lambda present: BODY,
    gpu=False,
)
