"""SplitRowsMatMul: rows of floats, rounded to 15 bits, times a matrix of 8-bit integers.

    x = (128 high + low) row_scale          each number of a row; both digits are integers of 8 bits
    products = activation((128 high . weights + low . weights) row_scale scale + bias) + addend

Rows of trained models have a few numbers that are far larger than the others. Integers of 8 bits lose the others, and
15 bits keep them: the error is the weights' own. The sums of integers are exact, so every processor gives the same
bits. The matrix is that of QuantizedMatMul, and is read from memory once. So a step of few rows takes the time of
DynamicQuantizeMatMul, and many rows take twice as long.
"""

from __future__ import annotations

from tightbeam.plugins.ops._split_rows import split
from tightbeam.plugins.ops.dynamic_quantize_matmul import DYNAMIC_QUANTIZE_MATMUL
from tightbeam.plugins.schema import Operator

__all__ = ["SPLIT_ROWS_MATMUL"]

BODY = f"""
    rest = Constant <value = int64[1] {{-1}}> ()
    R = Shape <start = 0, end = 1> (rows)
    width = Shape <start = 1, end = 2> (rows)
    blocks = Shape <start = 0, end = 1> (scale)
    block_width = Div (width, blocks)
    blocks_shape = Concat <axis = 0> (rest, block_width)
    rows_by_block = Reshape (rows, blocks_shape)
{split("rows_by_block")}
    rows_shape = Concat <axis = 0> (R, width)
    high_rows = Reshape (high, rows_shape)
    low_rows = Reshape (low, rows_shape)
    digits = Concat <axis = 1> (high_rows, low_rows)
    scale_shape = Concat <axis = 0> (R, blocks)
    low_scale = Reshape (digit_scale, scale_shape)
    high_scale = Mul (low_scale, digit)
    row_scale = Concat <axis = 1> (high_scale, low_scale)
    weights_twice = Concat <axis = 1> (weights, weights)
    scale_twice = Concat <axis = 0> (scale, scale)
    products = tightbeam.QuantizedMatMul <activation: int = @activation>
        (digits, row_scale, weights_twice, scale_twice, bias, addend)
"""

SPLIT_ROWS_MATMUL = Operator(
    "SplitRowsMatMul",
    "split_rows_matmul",
    DYNAMIC_QUANTIZE_MATMUL.inputs,
    DYNAMIC_QUANTIZE_MATMUL.outputs,
    lambda present: BODY,
    DYNAMIC_QUANTIZE_MATMUL.attributes,
    gpu=False,
)
