"""QuantizedBeamTopK: the product of the logits in int8 and BeamTopK in one, which keeps no logits.

    logits = rows weights scale + bias                      as DynamicQuantizeMatMul, or SplitRowsMatMul with ``split``
    scores, beams, tokens = BeamTopK(logits, ...)

While the logits of 256 columns are in the second cache, the largest one of each tile of 16 columns is kept, and for the
softmax the sum of the block's exponentials. The tiles that may hold one of the best C tokens are then multiplied once
more. So a step neither writes nor reads [B M, vocabulary] numbers: 30 MB for 32 samples of 4 beams and 58,101 tokens.
All outputs have the bits of the two operators.

All logits are computed if ``all_logits`` is true, if ``repetition_penalty`` is not 1, if a row is in a trie, and if
there are too many candidates, banned tokens and blocked repeats for the vocabulary. Read ``logits`` only if
``all_logits`` is true: otherwise its memory may hold anything.
"""

from __future__ import annotations

from tightbeam.plugins.ops.beam_top_k import BEAM_TOP_K
from tightbeam.plugins.schema import Attribute, Input, Operator, Output, Present

__all__ = ["QUANTIZED_BEAM_TOP_K"]


def _body(present: Present) -> str:
    product = "SplitRowsMatMul" if "split" in present else "DynamicQuantizeMatMul"
    searched = ", ".join(name for name in BEAM_TOP_K.input_names if name in {"logits", *present})
    return f"""
    nothing = Constant <value = float[1,1] {{0}}> ()
    logits = tightbeam.{product} <activation = 0> (rows, weights, scale, bias, nothing)
    scores, beams, tokens = tightbeam.BeamTopK ({searched})
"""


QUANTIZED_BEAM_TOP_K = Operator(
    "QuantizedBeamTopK",
    "quantized_beam_top_k",
    (
        Input("rows", "float32", "B M, 4 groups", "rows of numbers"),
        Input("weights", "uint8", "tiles, groups, 16, 4", "the matrix in integers plus 128, as of QuantizedMatMul"),
        Input("scale", "float32", "1, vocabulary", "scale of each column"),
        Input("bias", "float32", "vocabulary", "added to each row"),
        *(entry for entry in BEAM_TOP_K.inputs if entry.name != "logits"),
        Input("all_logits", "bool", "", "true: a search reads the logits, so that all are written", scalar=True),
    ),
    (
        *BEAM_TOP_K.outputs,
        Output("logits", "float32", "B M, vocabulary", "the logits if `all_logits`, else unspecified", optional=True),
    ),
    _body,
    (Attribute("split", "int", "1: rows keep 15 bits, as those of SplitRowsMatMul", default=0, switch=True),),
    may_be_zero=BEAM_TOP_K.may_be_zero,
    gpu=False,
)
