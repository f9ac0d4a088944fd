"""torch module -> program, captured so that torch's exporter need not trace it a second time.

``torch.onnx.export`` traces what it captured again, to decompose operators that it has no conversion for. That takes
longer than the capture, and next to nothing in a step of a model needs it: casts, assertions, a Reshape to the shape
that the tensor has. They are replaced one by one here. A program that writes to a tensor, has a graph within its graph,
or an operator of ``COMPOSED`` is left to torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.fx.experimental import _config as symbolic_config
from torch.fx.experimental.symbolic_shapes import statically_known_true

ATEN = torch.ops.aten
CASTS = (ATEN.to.dtype, ATEN.to.dtype_layout, ATEN.to.device)
RESHAPES = (ATEN.reshape.default, ATEN.view.default)
DETACHED = (ATEN.detach.default, ATEN.detach_.default)
RENAMED = {ATEN.__and__.Tensor: ATEN.bitwise_and.Tensor, ATEN.__or__.Tensor: ATEN.bitwise_or.Tensor}
"""Operators of the same schema, of which torch's exporter converts the second."""
COMPOSED = (ATEN.flatten.using_ints, ATEN.unflatten.int)
"""Operators whose decomposition makes fewer ONNX nodes than their conversion."""
ASSERTIONS = (
    ATEN._assert_scalar.default,
    ATEN._assert_tensor_metadata.default,
    ATEN.sym_constrain_range_for_size.default,
)


def capture(module: nn.Module, args: tuple[Tensor, ...], dynamic_shapes: Any) -> ExportedProgram:
    """Capture a module as a program for ``torch.onnx.export``, which decomposes it only if it has to.

    Parameters
    ----------
    module, args, dynamic_shapes
        As in :func:`~tightbeam.export.tracing.torch_export.trace_module`.

    Returns
    -------
    ExportedProgram
        The program; ``run_decompositions`` returns it unchanged if nothing needs torch's decomposition.

    Raises
    ------
    Exception
        Any that ``torch.export.export`` raises.
    """
    # As torch.onnx.export does it, so that a dynamic size may be 1.
    with torch.no_grad(), symbolic_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        program = torch.export.export(
            module, args, dynamic_shapes=dynamic_shapes, strict=False, prefer_deferred_runtime_asserts_over_guards=True
        )
    nodes = list(program.graph.nodes)
    if all(map(_stays, nodes)):
        for node in nodes:
            _replace(node)
        program.graph_module.recompile()
        program.run_decompositions = lambda *_: program
    return program


def _stays(node: fx.Node) -> bool:
    if node.op == "get_attr" or node.target in COMPOSED:  # the first is a graph within the graph
        return False
    written = isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
    return not written or node.target in DETACHED


def _replace(node: fx.Node) -> None:
    """Replace an operator by one that has a conversion. It keeps its name, which the program's signature may have."""
    source: Any = node.args[0] if node.args else None
    if node.target in ASSERTIONS:
        node.graph.erase_node(node)
    elif node.target in RENAMED:
        node.target = RENAMED[node.target]
    elif node.target in CASTS and node.meta["val"].dtype != source.meta["val"].dtype:
        node.target, node.args, node.kwargs = ATEN._to_copy.default, (source,), {"dtype": node.meta["val"].dtype}
    elif node.target in (*CASTS, *DETACHED) or (node.target in RESHAPES and _same_shape(source, node)):
        node.target, node.args, node.kwargs = ATEN.clone.default, (source,), {}


def _same_shape(source: fx.Node, node: fx.Node) -> bool:
    before, after = source.meta["val"].shape, node.meta["val"].shape
    return len(before) == len(after) and all(
        statically_known_true(one == other) for one, other in zip(before, after, strict=True)
    )
