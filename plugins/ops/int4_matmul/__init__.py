"""Int4MatMul: rows of floats, rounded to 15 bits, times a matrix of 4-bit integers with a scale for each 32 of them.

    x = (128 high + low) row_scale          each number of a row; both digits are integers of 8 bits
    sums = sum over b of ((128 high_b + low_b) . weights_b) block_scale_b
    products = activation(sums row_scale scale + bias) + addend

Integers of 4 bits need a scale for few numbers. Each block of 32 numbers of a column has one, which is an integer
1..255 times the column's own, so that a weight takes 4.25 bits. Sums within a block are exact integers below 2^24.
Floats are combined in exactly this order, block after block, and never contracted, so that every processor gives the
same bits. A step of few rows takes the time in which memory gives it the weights: half of SplitRowsMatMul's.

Weights are in tiles of 16 columns, like QuantizedMatMul's, with two integers in each byte.
``weights[y // 16, x // 8, y % 16, x % 4]`` has the weight of a row's number x in column y, plus 8: in its low bits if
x % 8 < 4, else in its high bits. Columns are padded to a whole tile, and the padding may hold any number.
"""

from __future__ import annotations

from tightbeam.plugins.ops._integer_matmul import integer_matmul
from tightbeam.plugins.ops._split_rows import split
from tightbeam.plugins.ops.quantized_matmul import FINISH, QUANTIZED_MATMUL
from tightbeam.plugins.schema import FLOAT, Input, Operator

__all__ = ["BLOCK", "BLOCKS_TEXT", "INT4_MATMUL", "MOST_SCALE", "ZERO_POINT"]

BLOCK = 32
"""Numbers of a column that share a scale."""
ZERO_POINT = 8
"""The four bits of weight 0."""
MOST_SCALE = 255
"""The largest scale of a block, in units of its column's."""

BLOCKS_TEXT = """
    axis0 = Constant <value = int64[1] {0}> ()
    axis1 = Constant <value = int64[1] {1}> ()
    axis2 = Constant <value = int64[1] {2}> ()
    rest = Constant <value = int64[1] {-1}> ()
    low_bits = Constant <value = uint8 {15}> ()
    four_bits = Constant <value = uint8 {4}> ()
    block_width = Constant <value = int64[1] {32}> ()

    first_weights = BitwiseAnd (weights, low_bits)
    second_weights = BitShift <direction = "RIGHT"> (weights, four_bits)
    first_of_two = Unsqueeze (first_weights, axis2)
    second_of_two = Unsqueeze (second_weights, axis2)
    both = Concat <axis = 2> (first_of_two, second_of_two)
    untiled = Transpose <perm = [1, 2, 4, 0, 3]> (both)
    blocks = Shape <start = 1, end = 2> (block_scale)
    blocks_shape = Concat <axis = 0> (blocks, block_width, rest)
    padded_weights = Reshape (untiled, blocks_shape)
    block_scales = Cast <to = 1> (block_scale)
    scales_of_blocks = Transpose <perm = [1, 0, 2]> (block_scales)
    scales_shape = Concat <axis = 0> (blocks, rest)
    padded_scales = Reshape (scales_of_blocks, scales_shape)
"""
"""Text that makes ``padded_weights`` uint8 [blocks, 32, 16 tiles] and ``padded_scales`` float32 [blocks, 16 tiles]."""

BODY = f"""
{BLOCKS_TEXT}
    zero_point = Constant <value = uint8 {{8}}> ()
    columns = Shape <start = 0, end = 1> (scale)
    B = Slice (padded_weights, axis0, columns, axis2)
    B_scales = Slice (padded_scales, axis0, columns, axis1)
{split("rows")}
    R = Shape <start = 0, end = 1> (rows)
    rows_shape = Concat <axis = 0> (R, blocks, block_width)
    high_by_row = Reshape (high, rows_shape)
    low_by_row = Reshape (low, rows_shape)
    high_rows = Transpose <perm = [1, 0, 2]> (high_by_row)
    low_rows = Transpose <perm = [1, 0, 2]> (low_by_row)
{integer_matmul("high_sums", "high_rows", "B")}
{integer_matmul("low_sums", "low_rows", "B")}
    high_numbers = Cast <to = 1> (high_sums)
    low_numbers = Cast <to = 1> (low_sums)
    worth = Mul (high_numbers, digit)
    numbers = Add (worth, low_numbers)
    scales_by_row = Unsqueeze (B_scales, axis1)
    by_block = Mul (numbers, scales_by_row)
    summed_blocks = ReduceSum <keepdims = 0> (by_block, axis0)
    by_row_scale = Mul (summed_blocks, digit_scale)
    summed = Mul (by_row_scale, scale)
    biased = Add (summed, bias)
"""

INT4_MATMUL = Operator(
    "Int4MatMul",
    "int4_matmul",
    (
        Input("rows", FLOAT, "R, 32 blocks", "rows of numbers"),
        Input("weights", "uint8", "tiles, 4 blocks, 16, 4", "the matrix in tiles of 16 columns, plus 8, two in a byte"),
        Input("block_scale", "uint8", "tiles, blocks, 16", "scale of each block of a column, in units of the column's"),
        Input("scale", "float32", "Y", "scale of each column"),
        *QUANTIZED_MATMUL.inputs[4:],
    ),
    QUANTIZED_MATMUL.outputs,
    lambda present: BODY + FINISH,
    QUANTIZED_MATMUL.attributes,
    gpu=False,
)
