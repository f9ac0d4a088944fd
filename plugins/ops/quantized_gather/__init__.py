"""QuantizedGather: rows of an embedding that is the transpose of a matrix of QuantizedMatMul.

    embeddings[r] = column tokens[r] of the weights, times its scale

So the embedding and the product that gives the logits read one matrix of bytes.
"""

from __future__ import annotations

from tightbeam.plugins.schema import Input, Operator, Output

__all__ = ["QUANTIZED_GATHER"]

BODY = """
    axis0 = Constant <value = int64[1] {0}> ()
    axis1 = Constant <value = int64[1] {1}> ()
    rest = Constant <value = int64[1] {-1}> ()
    tile_columns = Constant <value = int64 {16}> ()
    zero_point = Constant <value = float {128.0}> ()

    tiles = Div (tokens, tile_columns)
    places = Mod (tokens, tile_columns)
    places_column = Unsqueeze (places, axis1)
    of_tokens = Gather <axis = 0> (weights, tiles)
    by_place = Transpose <perm = [0, 2, 1, 3]> (of_tokens)
    bytes = GatherND <batch_dims = 1> (by_place, places_column)
    blocks = Shape <start = 0, end = 1> (scale)
    R = Shape <start = 0, end = 1> (tokens)
    shape = Concat <axis = 0> (R, blocks, rest)
    bytes_by_block = Reshape (bytes, shape)
    numbers = Cast <to = 1> (bytes_by_block)
    integers = Sub (numbers, zero_point)
    scales = Gather <axis = 1> (scale, tokens)
    scales_by_token = Transpose <perm = [1, 0]> (scales)
    axis2 = Constant <value = int64[1] {2}> ()
    scales_of_blocks = Unsqueeze (scales_by_token, axis2)
    scaled = Mul (integers, scales_of_blocks)
    flat = Concat <axis = 0> (R, rest)
    embeddings = Reshape (scaled, flat)
"""

QUANTIZED_GATHER = Operator(
    "QuantizedGather",
    "quantized_gather",
    (
        Input("tokens", "int64", "R", "columns to look up"),
        Input("weights", "uint8", "tiles, groups, 16, 4", "the matrix in tiles of 16 columns, plus 128"),
        Input("scale", "float32", "blocks, vocabulary", "scale of each column's integers, for each block"),
    ),
    (Output("embeddings", "float32", "R, 4 groups", "a row for each token"),),
    lambda present: BODY,
    gpu=False,
)
