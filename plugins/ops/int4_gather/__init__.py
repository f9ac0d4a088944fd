"""Int4Gather: rows of an embedding that is the transpose of a matrix of Int4MatMul.

    embeddings[r] = column tokens[r] of the weights, times the scales of its blocks, times its scale

So the embedding and the product that gives the logits read one matrix.
"""

from __future__ import annotations

from tightbeam.plugins.ops.int4_matmul import BLOCKS_TEXT, INT4_MATMUL
from tightbeam.plugins.schema import Input, Operator, Output

__all__ = ["INT4_GATHER"]

BODY = f"""
{BLOCKS_TEXT}
    zero_point = Constant <value = float {{8.0}}> ()
    found = Gather <axis = 2> (padded_weights, tokens)
    found_scales = Gather <axis = 1> (padded_scales, tokens)
    numbers = Cast <to = 1> (found)
    integers = Sub (numbers, zero_point)
    scale_of_token = Gather <axis = 0> (scale, tokens)
    by_token = Mul (found_scales, scale_of_token)
    scales = Unsqueeze (by_token, axis1)
    scaled = Mul (integers, scales)
    by_row = Transpose <perm = [2, 0, 1]> (scaled)
    R = Shape <start = 0, end = 1> (tokens)
    shape = Concat <axis = 0> (R, rest)
    embeddings = Reshape (by_row, shape)
"""

INT4_GATHER = Operator(
    "Int4Gather",
    "int4_gather",
    (
        Input("tokens", "int64", "R", "columns to look up"),
        *INT4_MATMUL.inputs[1:3],
        Input("scale", "float32", "vocabulary", "scale of each column"),
    ),
    (Output("embeddings", "float32", "R, 32 blocks", "a row for each token"),),
    lambda present: BODY,
    gpu=False,
)
