"""SplitRowsHeadMatMul: the rows of each head, rounded to 15 bits, times that head's matrix of 8-bit integers.

    x = (128 high + low) row_scale          each number of a row; both digits are integers of 8 bits
    products[r, h] = (128 high[r, h] . weights[h] + low[r, h] . weights[h]) row_scale[r, h] scale[h]

It is to HeadMatMul what SplitRowsMatMul is to DynamicQuantizeMatMul.
"""

from __future__ import annotations

from tightbeam.plugins.ops._integer_matmul import integer_matmul
from tightbeam.plugins.ops._split_rows import split
from tightbeam.plugins.ops.head_matmul import HEAD_MATMUL
from tightbeam.plugins.schema import Operator

__all__ = ["SPLIT_ROWS_HEAD_MATMUL"]

BODY = f"""
    axis0 = Constant <value = int64[1] {{0}}> ()
    axis1 = Constant <value = int64[1] {{1}}> ()
    axis2 = Constant <value = int64[1] {{2}}> ()
    axis3 = Constant <value = int64[1] {{3}}> ()
    rest = Constant <value = int64[1] {{-1}}> ()
    zero_point = Constant <value = uint8 {{128}}> ()

    R = Shape <start = 0, end = 1> (rows)
    H = Shape <start = 1, end = 2> (rows)
    width = Shape <start = 2, end = 3> (rows)
    blocks = Shape <start = 1, end = 2> (scale)
    columns = Shape <start = 2, end = 3> (scale)
    block_width = Div (width, blocks)
    flat_shape = Concat <axis = 0> (rest, block_width)
    flat_rows = Reshape (rows, flat_shape)
{split("flat_rows")}
    rows_shape = Concat <axis = 0> (R, H, blocks, block_width)
    high_by_row = Reshape (high, rows_shape)
    low_by_row = Reshape (low, rows_shape)
    high_rows = Transpose <perm = [1, 2, 0, 3]> (high_by_row)
    low_rows = Transpose <perm = [1, 2, 0, 3]> (low_by_row)
    untiled = Transpose <perm = [0, 2, 4, 1, 3]> (weights)
    weights_shape = Concat <axis = 0> (H, blocks, block_width, rest)
    padded = Reshape (untiled, weights_shape)
    matrices = Slice (padded, axis0, columns, axis3)
{integer_matmul("high_sums", "high_rows", "matrices")}
{integer_matmul("low_sums", "low_rows", "matrices")}
    high_numbers = Cast <to = 1> (high_sums)
    low_numbers = Cast <to = 1> (low_sums)
    worth = Mul (high_numbers, digit)
    numbers = Add (worth, low_numbers)
    row_scales_shape = Concat <axis = 0> (R, H, blocks, axis1)
    row_scales_by_row = Reshape (digit_scale, row_scales_shape)
    row_scales = Transpose <perm = [1, 2, 0, 3]> (row_scales_by_row)
    scales = Unsqueeze (scale, axis2)
    by_row = Mul (numbers, row_scales)
    scaled = Mul (by_row, scales)
    by_head = ReduceSum <keepdims = 0> (scaled, axis1)
    products32 = Transpose <perm = [1, 0, 2]> (by_head)
    products = CastLike (products32, rows)
"""

SPLIT_ROWS_HEAD_MATMUL = Operator(
    "SplitRowsHeadMatMul",
    "split_rows_head_matmul",
    HEAD_MATMUL.inputs,
    HEAD_MATMUL.outputs,
    lambda present: BODY,
    gpu=False,
)
