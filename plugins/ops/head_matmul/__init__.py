"""HeadMatMul: the rows of each head times that head's matrix of integers, scaled.

    products[r, h] = sum over b of (integers of rows[r, h]_b . weights[h]_b) row_scale_b scale[h]_b

Each row of a head is quantised by itself, as by QuantizeRows, and multiplied as by QuantizedMatMul, whose layout the
weights of each head have. So the products before and after attention over states or keys need neither transposes nor
float32 matrices.
"""

from __future__ import annotations

from tightbeam.plugins.ops._integer_matmul import integer_matmul
from tightbeam.plugins.schema import FLOAT, Input, Operator, Output

__all__ = ["HEAD_MATMUL"]

BODY = (
    """
    axis0 = Constant <value = int64[1] {0}> ()
    axis1 = Constant <value = int64[1] {1}> ()
    axis2 = Constant <value = int64[1] {2}> ()
    axis3 = Constant <value = int64[1] {3}> ()
    rest = Constant <value = int64[1] {-1}> ()
    zero_point = Constant <value = uint8 {128}> ()

    R = Shape <start = 0, end = 1> (rows)
    H = Shape <start = 1, end = 2> (rows)
    width = Shape <start = 2, end = 3> (rows)
    blocks = Shape <start = 1, end = 2> (scale)
    columns = Shape <start = 2, end = 3> (scale)
    block_width = Div (width, blocks)
    flat_shape = Concat <axis = 0> (rest, block_width)
    flat_rows = Reshape (rows, flat_shape)
    quantized, row_scale = tightbeam.QuantizeRows (flat_rows)
    rows_shape = Concat <axis = 0> (R, H, blocks, block_width)
    rows_by_block = Reshape (quantized, rows_shape)
    A = Transpose <perm = [1, 2, 0, 3]> (rows_by_block)
    untiled = Transpose <perm = [0, 2, 4, 1, 3]> (weights)
    weights_shape = Concat <axis = 0> (H, blocks, block_width, rest)
    padded = Reshape (untiled, weights_shape)
    B = Slice (padded, axis0, columns, axis3)
"""
    + integer_matmul("integers", "A", "B")
    + """
    numbers = Cast <to = 1> (integers)
    row_scales_shape = Concat <axis = 0> (R, H, blocks, axis1)
    row_scales_by_row = Reshape (row_scale, row_scales_shape)
    row_scales = Transpose <perm = [1, 2, 0, 3]> (row_scales_by_row)
    scales = Unsqueeze (scale, axis2)
    by_row = Mul (numbers, row_scales)
    scaled = Mul (by_row, scales)
    by_head = ReduceSum <keepdims = 0> (scaled, axis1)
    products32 = Transpose <perm = [1, 0, 2]> (by_head)
    products = CastLike (products32, rows)
"""
)

HEAD_MATMUL = Operator(
    "HeadMatMul",
    "head_matmul",
    (
        Input("rows", FLOAT, "R, H, 4 groups", "rows of numbers of each head"),
        Input("weights", "uint8", "H, tiles, groups, 16, 4", "the heads' matrices in tiles of 16 columns, plus 128"),
        Input("scale", "float32", "H, blocks, Y", "scale of each column's integers, for each block"),
    ),
    (Output("products", FLOAT, "R, H, Y", "the products"),),
    lambda present: BODY,
    gpu=False,
)
