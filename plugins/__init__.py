"""The operators of domain ``tightbeam``, one folder each: the schema and the reference as one ONNX function.

A model carries the function of every operator it uses, so it runs on any runtime without a library of ours.

Importing this package imports nothing but itself, so the serving side may use it; :func:`functions` needs ``onnx``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tightbeam.plugins.beam_attention import BEAM_ATTENTION
from tightbeam.plugins.beam_top_k import BEAM_TOP_K
from tightbeam.plugins.latent_attention import LATENT_ATTENTION
from tightbeam.plugins.ngram_block import NGRAM_BLOCK

if TYPE_CHECKING:
    import onnx

__all__ = ["DOMAIN", "IR_VERSION", "OPERATORS", "OPSET", "functions"]

DOMAIN = "tightbeam"
OPSET = 24
"""Version of the standard operators that the function bodies are written in (24 brings TensorScatter)."""
IR_VERSION = 10
"""Version of the file format that models are written in: the first with all that the functions need, so that runtimes
behind the newest onnx package read them."""

OPERATORS: dict[str, str] = {
    "NGramBlock": NGRAM_BLOCK,
    "BeamAttention": BEAM_ATTENTION,
    "LatentAttention": LATENT_ATTENTION,
    "BeamTopK": BEAM_TOP_K,
}
"""Operator name -> its function in ONNX's text form."""


def functions(used: set[str]) -> list[onnx.FunctionProto]:
    """The function bodies of the operators ``used``, and of those they call in turn.

    Raises KeyError for a name that is no operator of this domain.
    """
    import onnx.parser

    header = f'<domain: "{DOMAIN}", opset_import: ["": {OPSET}, "{DOMAIN}": 1]>\n'
    found: dict[str, onnx.FunctionProto] = {}
    pending = sorted(used)
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found[name] = onnx.parser.parse_function(header + OPERATORS[name])
        pending += [node.op_type for node in found[name].node if node.domain == DOMAIN]
    return [found[name] for name in sorted(found)]
