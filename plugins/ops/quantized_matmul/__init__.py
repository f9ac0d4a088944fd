"""QuantizedMatMul: rows of integers times a matrix of integers, scaled, with bias, activation and addend in one pass.

    products = activation(sum over b of (rows_b . weights_b) row_scale_b scale_b + bias) + addend

The sums of integers are exact. Floats are combined in exactly this order, and never contracted, so that every processor
gives the same bits. A row's numbers and each column's weights have a scale for each of their blocks b; one block is the
common case.

Weights are in tiles of 16 columns, in the order in which kernels read them, so that nothing is packed or copied when a
model is loaded. ``weights[y // 16, x // 4, y % 16, x % 4]`` is 128 more than the weight of a row's number x in column
y. Columns are padded to a whole tile, and the padding may hold any number.
"""

from __future__ import annotations

from tightbeam.plugins.ops._integer_matmul import integer_matmul
from tightbeam.plugins.schema import FLOAT, Attribute, Input, Operator, Output

__all__ = ["ACTIVATIONS", "FINISH", "GROUP", "QUANTIZED_MATMUL", "TILE_COLUMNS", "ZERO_POINT"]

TILE_COLUMNS = 16
GROUP = 4
"""Numbers of a row whose weights are side by side."""
ZERO_POINT = 128
"""The byte of weight 0."""
ACTIVATIONS = {"": 0, "Relu": 1, "Gelu": 2, "Swish": 3, "GeluTanh": 4}
"""ONNX operator -> value of the attribute ``activation``. GeluTanh is Gelu in its tanh approximation."""

BODY = f"""
    axis0 = Constant <value = int64[1] {{0}}> ()
    axis1 = Constant <value = int64[1] {{1}}> ()
    axis2 = Constant <value = int64[1] {{2}}> ()
    rest = Constant <value = int64[1] {{-1}}> ()
    zero_point = Constant <value = uint8 {{128}}> ()
    one_block = Constant <value = int64[1] {{1}}> ()

    blocks = Shape <start = 0, end = 1> (scale)
    columns = Shape <start = 1, end = 2> (scale)
    R = Shape <start = 0, end = 1> (rows)
    width = Shape <start = 1, end = 2> (rows)
    block_width = Div (width, blocks)
    untiled = Transpose <perm = [1, 3, 0, 2]> (weights)
    weights_shape = Concat <axis = 0> (blocks, block_width, rest)
    padded = Reshape (untiled, weights_shape)
    B = Slice (padded, axis0, columns, axis2)
    has_one_block = Equal (blocks, one_block)
    summed = If (has_one_block) <
        then_branch = of_one () => (float[] products_of_one) {{
            matrix = Squeeze (B, axis0)
            {integer_matmul("sums_of_one", "rows", "matrix")}
            numbers_of_one = Cast <to = 1> (sums_of_one)
            by_row_of_one = Mul (numbers_of_one, row_scale)
            products_of_one = Mul (by_row_of_one, scale)
        }},
        else_branch = of_blocks () => (float[] products_of_blocks) {{
            rows_shape = Concat <axis = 0> (R, blocks, block_width)
            rows_by_block = Reshape (rows, rows_shape)
            A = Transpose <perm = [1, 0, 2]> (rows_by_block)
            {integer_matmul("integers", "A", "B")}
            numbers = Cast <to = 1> (integers)
            row_scales_of_blocks = Transpose <perm = [1, 0]> (row_scale)
            row_scales = Unsqueeze (row_scales_of_blocks, axis2)
            scales = Unsqueeze (scale, axis1)
            by_row = Mul (numbers, row_scales)
            scaled = Mul (by_row, scales)
            products_of_blocks = ReduceSum <keepdims = 0> (scaled, axis0)
        }}
    >
    biased = Add (summed, bias)
"""
"""A matrix of one block has a product of its own: ONNX Runtime packs the weights of two axes alone when it loads."""
FINISH = """
    which = Constant <value_int: int = @activation> ()
    one = Constant <value = int64 {1}> ()
    two = Constant <value = int64 {2}> ()
    three = Constant <value = int64 {3}> ()
    four = Constant <value = int64 {4}> ()
    is_relu = Equal (which, one)
    is_gelu = Equal (which, two)
    is_swish = Equal (which, three)
    is_gelu_tanh = Equal (which, four)
    if_relu = If (is_relu) <
        then_branch = relu () => (float[] rectified) {
            rectified = Relu (biased)
        },
        else_branch = no_relu () => (float[] not_rectified) {
            not_rectified = Identity (biased)
        }
    >
    if_gelu = If (is_gelu) <
        then_branch = gelu () => (float[] gelu) {
            gelu = Gelu (biased)
        },
        else_branch = no_gelu () => (float[] not_gelu) {
            not_gelu = Identity (if_relu)
        }
    >
    if_swish = If (is_swish) <
        then_branch = swish () => (float[] swish) {
            sigmoid = Sigmoid (biased)
            swish = Mul (biased, sigmoid)
        },
        else_branch = no_swish () => (float[] not_swish) {
            not_swish = Identity (if_gelu)
        }
    >
    active = If (is_gelu_tanh) <
        then_branch = gelu_tanh () => (float[] gelu_tanh) {
            gelu_tanh = Gelu <approximate = "tanh"> (biased)
        },
        else_branch = no_gelu_tanh () => (float[] not_gelu_tanh) {
            not_gelu_tanh = Identity (if_swish)
        }
    >
    added = Cast <to = 1> (addend)
    sums = Add (active, added)
    products = CastLike (sums, addend)
"""
"""Text that makes the products of ``biased``: the activation, then the addend."""

QUANTIZED_MATMUL = Operator(
    "QuantizedMatMul",
    "quantized_matmul",
    (
        Input("rows", "int8", "R, 4 groups", "rows of integers, as QuantizeRows gives them"),
        Input("row_scale", "float32", "R, blocks", "scale of each row's integers, for each block"),
        Input("weights", "uint8", "tiles, groups, 16, 4", "the matrix in tiles of 16 columns, plus 128"),
        Input("scale", "float32", "blocks, Y", "scale of each column's integers, for each block"),
        Input("bias", "float32", "Y", "added to each row before the activation"),
        Input(
            "addend",
            FLOAT,
            "addend_rows, addend_columns",
            "added after the activation: [R, Y], or one number as [1, 1]",
        ),
    ),
    (Output("products", FLOAT, "R, Y", "the products"),),
    lambda present: BODY + FINISH,
    (Attribute("activation", "int", "0: none, 1: ReLU, 2: GELU, 3: SiLU, 4: GELU by tanh", 0),),
    gpu=False,
)
