"""The operators of domain ``tightbeam``, one folder each: table, reference as one ONNX function, kernels, cases.

A model carries the function of every operator that it uses, so it runs on any runtime without our library. If the
library is registered, its kernels run in place of the functions.

This package imports only the standard library; :func:`function` and :func:`functions` need ``onnx``.
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
from tightbeam.plugins.ops.int4_gather import INT4_GATHER
from tightbeam.plugins.ops.int4_matmul import INT4_MATMUL
from tightbeam.plugins.ops.latent_attention import LATENT_ATTENTION
from tightbeam.plugins.ops.linear import LINEAR
from tightbeam.plugins.ops.ngram_block import NGRAM_BLOCK
from tightbeam.plugins.ops.normalize_rows import NORMALIZE_ROWS
from tightbeam.plugins.ops.prompt_attention import PROMPT_ATTENTION
from tightbeam.plugins.ops.quantize_rows import QUANTIZE_ROWS
from tightbeam.plugins.ops.quantized_beam_attention import QUANTIZED_BEAM_ATTENTION
from tightbeam.plugins.ops.quantized_beam_top_k import QUANTIZED_BEAM_TOP_K
from tightbeam.plugins.ops.quantized_gather import QUANTIZED_GATHER
from tightbeam.plugins.ops.quantized_latent_attention import QUANTIZED_LATENT_ATTENTION
from tightbeam.plugins.ops.quantized_matmul import QUANTIZED_MATMUL
from tightbeam.plugins.ops.quantized_source_attention import QUANTIZED_SOURCE_ATTENTION
from tightbeam.plugins.ops.screened_linear import SCREENED_LINEAR
from tightbeam.plugins.ops.screened_quantized_matmul import SCREENED_QUANTIZED_MATMUL
from tightbeam.plugins.ops.source_attention import SOURCE_ATTENTION
from tightbeam.plugins.ops.split_rows_head_matmul import SPLIT_ROWS_HEAD_MATMUL
from tightbeam.plugins.ops.split_rows_matmul import SPLIT_ROWS_MATMUL
from tightbeam.plugins.ops.tiled_gather import TILED_GATHER
from tightbeam.plugins.schema import DOMAIN, VERSION, Operator

if TYPE_CHECKING:
    import onnx

__all__ = ["DOMAIN", "IR_VERSION", "OPERATORS", "OPSET", "VERSION", "Operator", "function", "functions"]

OPSET = 24
"""Version of ONNX's operators that the function bodies are written in (24 brings TensorScatter)."""
IR_VERSION = 10
"""Version of the file format that models are written in: the first that has all that the functions need, so that
runtimes older than the newest onnx package read them."""

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
        PROMPT_ATTENTION,
        NORMALIZE_ROWS,
        QUANTIZE_ROWS,
        QUANTIZED_MATMUL,
        DYNAMIC_QUANTIZE_MATMUL,
        HEAD_MATMUL,
        SPLIT_ROWS_MATMUL,
        SPLIT_ROWS_HEAD_MATMUL,
        INT4_MATMUL,
        QUANTIZED_SOURCE_ATTENTION,
        QUANTIZED_LATENT_ATTENTION,
        QUANTIZED_BEAM_ATTENTION,
        LINEAR,
        TILED_GATHER,
        QUANTIZED_GATHER,
        INT4_GATHER,
        SCREENED_LINEAR,
        SCREENED_QUANTIZED_MATMUL,
        QUANTIZED_BEAM_TOP_K,
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

    Returns
    -------
    onnx.FunctionProto
        The function, which all nodes with these inputs, outputs and switches share.

    Raises
    ------
    KeyError
        The domain has no operator of this name.
    ValueError
        A required input or output is missing, or a name is not one of the operator's.
    """
    import onnx.parser

    header = f'<domain: "{DOMAIN}", opset_import: ["": {OPSET}, "{DOMAIN}": {VERSION}]>\n'
    return onnx.parser.parse_function(header + OPERATORS[name].text(present))


def functions(nodes: Iterable[onnx.NodeProto]) -> list[onnx.FunctionProto]:
    """Make the ONNX functions of the operators of this domain that ``nodes`` use, directly or through one another.

    Parameters
    ----------
    nodes
        All nodes of a model. Nodes of other domains are ignored.

    Returns
    -------
    list of onnx.FunctionProto
        One for each operator, sorted by name.

    Raises
    ------
    ValueError
        Two nodes of one operator have different optional inputs, outputs or switches. A model has one function for
        each name.
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
