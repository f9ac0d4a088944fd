"""DynamicQuantizeMatMul: rows of floats times a matrix of integers, as QuantizeRows and QuantizedMatMul in one.

    quantized, row_scale = QuantizeRows(rows)
    products = QuantizedMatMul(quantized, row_scale, weights, scale, bias, addend)

It serves rows that only one product reads, and saves a step one operator call. If the matrix has a scale for each block
of a column, each block of a row is quantised by itself.
"""

from __future__ import annotations

from tightbeam.plugins.ops.quantized_matmul import QUANTIZED_MATMUL
from tightbeam.plugins.schema import FLOAT, Input, Operator

__all__ = ["DYNAMIC_QUANTIZE_MATMUL"]

BODY = """
    rest = Constant <value = int64[1] {-1}> ()
    R = Shape <start = 0, end = 1> (rows)
    width = Shape <start = 1, end = 2> (rows)
    blocks = Shape <start = 0, end = 1> (scale)
    block_width = Div (width, blocks)
    blocks_shape = Concat <axis = 0> (rest, block_width)
    rows_by_block = Reshape (rows, blocks_shape)
    quantized_by_block, scale_by_block = tightbeam.QuantizeRows (rows_by_block)
    quantized_shape = Concat <axis = 0> (R, width)
    quantized = Reshape (quantized_by_block, quantized_shape)
    scale_shape = Concat <axis = 0> (R, blocks)
    row_scale = Reshape (scale_by_block, scale_shape)
    products = tightbeam.QuantizedMatMul <activation: int = @activation>
        (quantized, row_scale, weights, scale, bias, addend)
"""

DYNAMIC_QUANTIZE_MATMUL = Operator(
    "DynamicQuantizeMatMul",
    "dynamic_quantize_matmul",
    (Input("rows", FLOAT, "R, 4 groups", "rows of numbers"), *QUANTIZED_MATMUL.inputs[2:]),
    QUANTIZED_MATMUL.outputs,
    lambda present: BODY,
    QUANTIZED_MATMUL.attributes,
    gpu=False,
)
