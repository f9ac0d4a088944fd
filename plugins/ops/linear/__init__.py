"""Linear: rows times a matrix in tiles, with bias and addend in one pass.

    products = rows weights + bias + addend

Weights are in tiles of 16 columns, ``weights[y // 16, x, y % 16]``, the order in which the kernel reads them. So the
kernel reads them in the mapped weights file, whereas ONNX Runtime packs a MatMul's matrix into memory of each session.
Columns are padded to a whole tile, and the padding may hold any number. A product is summed from a row's first number
to its last for every number of rows, so that a row gives the same bits in every batch.

The operator has no activation, since a GPU runs the function, which would need a node for every activation.
"""

from __future__ import annotations

from tightbeam.plugins.schema import Input, Operator, Output

__all__ = ["LINEAR"]

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
    products = Add (biased, addend)
"""

LINEAR = Operator(
    "Linear",
    "linear",
    (
        Input("rows", "float32", "R, X", "rows of numbers"),
        Input("weights", "float32", "tiles, X, 16", "the matrix in tiles of 16 columns"),
        Input("bias", "float32", "Y", "added to each row"),
        Input("addend", "float32", "addend_rows, addend_columns", "added as well: [R, Y], or one number as [1, 1]"),
    ),
    (Output("products", "float32", "R, Y", "the products"),),
    lambda present: BODY,
    gpu=False,
)
