"""The operators of domain ``tightbeam``, one folder each: schema, reference as one ONNX function, kernels, cases.

A model carries the function of every operator it uses, so it runs on any runtime without a library of ours; where the
library is registered, its kernels run instead.

This package imports nothing but the standard library; :func:`functions` needs ``onnx``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tightbeam.plugins.ops.beam_attention import BEAM_ATTENTION
from tightbeam.plugins.ops.beam_latent_attention import BEAM_LATENT_ATTENTION
from tightbeam.plugins.ops.beam_top_k import BEAM_TOP_K
from tightbeam.plugins.ops.dynamic_quantize_matmul import DYNAMIC_QUANTIZE_MATMUL
from tightbeam.plugins.ops.encoder_attention import ENCODER_ATTENTION
from tightbeam.plugins.ops.head_matmul import HEAD_MATMUL
from tightbeam.plugins.ops.latent_attention import LATENT_ATTENTION
from tightbeam.plugins.ops.linear import LINEAR
from tightbeam.plugins.ops.ngram_block import NGRAM_BLOCK
from tightbeam.plugins.ops.normalize_rows import NORMALIZE_ROWS
from tightbeam.plugins.ops.quantize_rows import QUANTIZE_ROWS
from tightbeam.plugins.ops.quantized_gather import QUANTIZED_GATHER
from tightbeam.plugins.ops.quantized_latent_attention import QUANTIZED_LATENT_ATTENTION
from tightbeam.plugins.ops.quantized_matmul import QUANTIZED_MATMUL
from tightbeam.plugins.ops.quantized_source_attention import QUANTIZED_SOURCE_ATTENTION
from tightbeam.plugins.ops.source_attention import SOURCE_ATTENTION
from tightbeam.plugins.ops.tiled_gather import TILED_GATHER
from tightbeam.plugins.schema import Operator

if TYPE_CHECKING:
    import onnx

__all__ = ["DOMAIN", "IR_VERSION", "OPERATORS", "OPSET", "VERSION", "Operator", "function", "functions"]

DOMAIN = "tightbeam"
VERSION = 3
"""Version of the operators, the domain's opset. A bundle of an older version keeps to the functions it carries."""
OPSET = 24
"""Version of the standard operators that the function bodies are written in (24 brings TensorScatter)."""
IR_VERSION = 10
"""Version of the file format that models are written in: the first with all that the functions need, so that runtimes
behind the newest onnx package read them."""

OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        NGRAM_BLOCK,
        BEAM_ATTENTION,
        BEAM_LATENT_ATTENTION,
        SOURCE_ATTENTION,
        LATENT_ATTENTION,
        BEAM_TOP_K,
        ENCODER_ATTENTION,
        NORMALIZE_ROWS,
        QUANTIZE_ROWS,
        QUANTIZED_MATMUL,
        DYNAMIC_QUANTIZE_MATMUL,
        HEAD_MATMUL,
        QUANTIZED_SOURCE_ATTENTION,
        QUANTIZED_LATENT_ATTENTION,
        LINEAR,
        TILED_GATHER,
        QUANTIZED_GATHER,
    )
}
"""Every operator by its name."""


def function(name: str, present: frozenset[str]) -> onnx.FunctionProto:
    """Make the ONNX function of an operator.

    Parameters
    ----------
    name
        Name of the operator.
    present
        Names of the inputs, outputs and switches that its nodes have.

    Raises
    ------
    KeyError
        This domain has no such operator.
    ValueError
        A required input or output is not present.
    """
    import onnx.parser

    header = f'<domain: "{DOMAIN}", opset_import: ["": {OPSET}, "{DOMAIN}": {VERSION}]>\n'
    return onnx.parser.parse_function(header + OPERATORS[name].text(present))


def functions(nodes: Iterable[onnx.NodeProto]) -> list[onnx.FunctionProto]:
    """Make the ONNX functions of the operators of this domain among ``nodes``, and of those that they call in turn.

    Returns
    -------
    list of FunctionProto
        One for each operator, sorted by name.

    Raises
    ------
    ValueError
        Two nodes of one operator differ in the optional inputs, outputs and switches they have; a model has one
        function a name.
    """
    found: dict[str, tuple[frozenset[str], onnx.FunctionProto]] = {}
    pending = [node for node in nodes if node.domain == DOMAIN]
    while pending:
        node = pending.pop()
        operator = OPERATORS[node.op_type]
        present = _present(operator.input_names, node.input) | _present(operator.output_names, node.output)
        present |= operator.switches.intersection(attribute.name for attribute in node.attribute)
        if node.op_type not in found:
            found[node.op_type] = present, function(node.op_type, present)
            pending += [called for called in found[node.op_type][1].node if called.domain == DOMAIN]
        elif found[node.op_type][0] != present:
            differing = ", ".join(sorted(found[node.op_type][0] ^ present))
            raise ValueError(f"{node.op_type}: only some nodes of the model have {differing}; give it to all or none")
    return [found[name][1] for name in sorted(found)]


def _present(names: tuple[str, ...], given: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name, tensor in zip(names, given, strict=False) if tensor)
