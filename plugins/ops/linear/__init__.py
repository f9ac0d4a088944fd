"""Linear: rows times a matrix in tiles, with bias, activation and addend in one pass.

    products = activation(rows weights + bias) + addend

Weights lie in tiles of 16 columns, ``weights[y // 16, x, y % 16]``, the order in which the kernel reads them. So they
are read where the weights file is mapped, where ONNX Runtime packs the matrix of a MatMul into memory of each session.
Columns are padded to a whole tile; what the padding holds does not matter. A product is summed from a row's first
number to its last whatever the number of rows, so that a row gives the same bits in every batch.
"""

from __future__ import annotations

from tightbeam.plugins.ops.quantized_matmul import ACTIVATIONS
from tightbeam.plugins.schema import Attribute, Input, Operator, Output

__all__ = ["ACTIVATIONS", "LINEAR"]

BODY = """
    axis0 = Constant <value = int64[1] {0}> ()
    axis1 = Constant <value = int64[1] {1}> ()
    rest = Constant <value = int64[1] {-1}> ()
    columns = Shape (bias)
    width = Shape <start = 1, end = 2> (weights)
    untiled = Transpose <perm = [1, 0, 2]> (weights)
    matrix_shape = Concat <axis = 0> (width, rest)
    padded = Reshape (untiled, matrix_shape)
    matrix = Slice (padded, axis0, columns, axis1)
    multiplied = MatMul (rows, matrix)
    biased = Add (multiplied, bias)

    which = Constant <value_int: int = @activation> ()
    one = Constant <value = int64 {1}> ()
    two = Constant <value = int64 {2}> ()
    three = Constant <value = int64 {3}> ()
    four = Constant <value = int64 {4}> ()
    is_relu = Equal (which, one)
    is_gelu = Equal (which, two)
    is_swish = Equal (which, three)
    is_gelu_tanh = Equal (which, four)
    rectified = Relu (biased)
    gelu = Gelu (biased)
    sigmoid = Sigmoid (biased)
    swish = Mul (biased, sigmoid)
    gelu_tanh = Gelu <approximate = "tanh"> (biased)
    if_relu = Where (is_relu, rectified, biased)
    if_gelu = Where (is_gelu, gelu, if_relu)
    if_swish = Where (is_swish, swish, if_gelu)
    active = Where (is_gelu_tanh, gelu_tanh, if_swish)
    products = Add (active, addend)
"""

LINEAR = Operator(
    "Linear",
    "linear",
    (
        Input("rows", "float32", "R, X", "rows of numbers"),
        Input("weights", "float32", "tiles, X, 16", "the matrix in tiles of 16 columns"),
        Input("bias", "float32", "Y", "added to each row before the activation"),
        Input("addend", "float32", "addend_rows, addend_columns", "added after it: [R, Y], or one number as [1, 1]"),
    ),
    (Output("products", "float32", "R, Y", "the products"),),
    lambda present: BODY,
    (Attribute("activation", "int", "0 none, 1 ReLU, 2 GELU, 3 SiLU, 4 GELU by tanh", 0),),
    gpu=False,
)
