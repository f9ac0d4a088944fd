"""TiledGather: rows of an embedding that is the transpose of a matrix of Linear.

    embeddings[r] = column tokens[r] of the weights

So the embedding and the product that gives the logits read one matrix.
"""

from __future__ import annotations

from tightbeam.plugins.schema import Input, Operator, Output

__all__ = ["TILED_GATHER"]

BODY = """
    axis1 = Constant <value = int64[1] {1}> ()
    tile_columns = Constant <value = int64 {16}> ()
    tiles = Div (tokens, tile_columns)
    places = Mod (tokens, tile_columns)
    places_column = Unsqueeze (places, axis1)
    of_tokens = Gather <axis = 0> (weights, tiles)
    by_place = Transpose <perm = [0, 2, 1]> (of_tokens)
    embeddings = GatherND <batch_dims = 1> (by_place, places_column)
"""

TILED_GATHER = Operator(
    "TiledGather",
    "tiled_gather",
    (
        Input("tokens", "int64", "R", "columns to look up"),
        Input("weights", "float32", "tiles, X, 16", "the matrix in tiles of 16 columns"),
    ),
    (Output("embeddings", "float32", "R, X", "a row for each token"),),
    lambda present: BODY,
    gpu=False,
)
