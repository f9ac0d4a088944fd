"""ScreenedLinear: the logits of a large vocabulary, from few of its columns if only the best are read.

    estimate = rows integers scale + bias       bytes: a quarter of the weights'
    |estimate - logit| <= |row| error           proven for each column
    logit = rows weights + bias                 for columns whose bound reaches the best; -inf for others

A greedy step reads its best C tokens alone. A logit that is computed has the bits of ``Linear``, and a token that is
left out is provably below the best C tokens that BeamTopK may choose, so its choice is the same. These are counted
without the tokens whose scores BeamTopK changes: banned ones, those that would repeat an n-gram, and under a repetition
penalty those of the history. Everything else gets the whole product: log-probabilities, logits that a search reads, a
penalty below 1, rows in a trie, many candidates, and rows for which too many columns are left.

``error`` holds what a column's integers lose, and the rounding of rows and of float32 sums (``layout.py``).
"""

from __future__ import annotations

from tightbeam.plugins.ops.beam_top_k import BEAM_TOP_K
from tightbeam.plugins.schema import Input, Operator, Output

__all__ = ["SCREENED_LINEAR", "SEARCH_INPUTS"]

OF_BEAM_TOP_K = (
    "history",
    "lengths",
    "banned",
    "normalize",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "trie_nodes",
)
"""Inputs that BeamTopK has too."""


def _search_inputs() -> tuple[Input, ...]:
    entries = {entry.name: entry for entry in BEAM_TOP_K.inputs}
    return (
        *(
            Input(entry.name, entry.type, entry.shape, entry.meaning, scalar=entry.scalar)
            for entry in (entries[name] for name in OF_BEAM_TOP_K)
        ),
        Input("candidates", "int64", "", "C of BeamTopK", scalar=True),
        Input("all_logits", "bool", "", "true: a search reads the logits, so that all are computed", scalar=True),
    )


SEARCH_INPUTS = _search_inputs()
"""Inputs that say which logits of a step are read."""

BODY = """
    nothing = Constant <value = float[1,1] {0}> ()
    logits = tightbeam.Linear (rows, weights, bias, nothing)
"""

SCREENED_LINEAR = Operator(
    "ScreenedLinear",
    "screened_linear",
    (
        Input("rows", "float32", "B M, 4 groups", "rows of numbers"),
        Input("weights", "float32", "tiles, 4 groups, 16", "the matrix in tiles of 16 columns, as of Linear"),
        Input("bias", "float32", "vocabulary", "added to each row; finite or -inf"),
        Input("integers", "uint8", "tiles, groups, 16, 4", "the matrix in integers plus 128, as of QuantizedMatMul"),
        Input("scale", "float32", "vocabulary", "scale of each column's integers"),
        Input("error", "float32", "vocabulary", "largest error of a column's estimate for a row of length 1"),
        *SEARCH_INPUTS,
    ),
    (Output("logits", "float32", "B M, vocabulary", "the logits, or -inf for a token below the best C"),),
    lambda present: BODY,
    may_be_zero=("P",),
    gpu=False,
)
