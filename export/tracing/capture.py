"""torch module -> program, captured so that torch's exporter need not trace it a second time.

``torch.onnx.export`` traces what it captured again, to decompose operators that it has no conversion for. That takes
longer than the capture, and next to nothing in a step of a model needs it: casts, assertions, a Reshape to the shape
that the tensor has, dimensions that are joined or split. They are replaced one by one here. Left to torch is a program
that writes to a tensor that something else reads, has a graph within its graph, joins dimensions to a size that nothing
else has, or has an operator of ``DECOMPOSED``.
"""

from __future__ import annotations

from itertools import takewhile
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
ADDED = {ATEN.add_.Tensor: ATEN.add.Tensor}
"""Operators that write to a tensor, and those that return a new one."""
RESHAPED = (ATEN.flatten.using_ints, ATEN.unflatten.int)
"""Operators that a Reshape replaces, whose conversion makes fewer ONNX nodes."""
DECOMPOSED = (ATEN.batch_norm.default, ATEN.rsub.Scalar)
"""Operators that torch's exporter converts only once it has decomposed them."""
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
    if node.op == "get_attr" or node.target in DECOMPOSED:  # the first is a graph within the graph
        return False
    if node.target in RESHAPED:
        return all(isinstance(size, int) or _origin(size, node) is not None for size in node.meta["val"].shape)
    written = isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
    return not written or node.target in DETACHED or (node.target in ADDED and _is_fresh(node))


def _is_fresh(node: fx.Node) -> bool:
    """Return whether the tensor that a node writes to shares no memory with another one, and nothing else reads it."""
    source: Any = node.args[0]
    if list(source.users) != [node] or not isinstance(source.target, torch._ops.OpOverload):
        return False
    return all(result.alias_info is None for result in source.target._schema.returns)


def _replace(node: fx.Node) -> None:
    """Replace an operator by one that has a conversion. It keeps its name, which the program's signature may have."""
    source: Any = node.args[0] if node.args else None
    if node.target in ASSERTIONS:
        node.graph.erase_node(node)
    elif node.target in RENAMED or node.target in ADDED:
        node.target = {**RENAMED, **ADDED}[node.target]
    elif node.target in CASTS and node.meta["val"].dtype != source.meta["val"].dtype:
        node.target, node.args, node.kwargs = ATEN._to_copy.default, (source,), {"dtype": node.meta["val"].dtype}
    elif node.target in (*CASTS, *DETACHED) or (node.target in RESHAPES and _same_shape(source, node)):
        node.target, node.args, node.kwargs = ATEN.clone.default, (source,), {}
    elif node.target in RESHAPED:
        node.target, node.args, node.kwargs = ATEN.reshape.default, (source, _sizes(node)), {}


def _sizes(node: fx.Node) -> list[int | fx.Node]:
    """Sizes of a node's tensor, the dynamic ones as nodes before it."""
    found: list[int | fx.Node] = []
    for size in node.meta["val"].shape:
        one = size if isinstance(size, int) else _origin(size, node)
        assert one is not None
        if isinstance(one, tuple):
            with node.graph.inserting_before(node):
                one = node.graph.call_function(ATEN.sym_size.int, one)
            one.meta["val"] = size
        found.append(one)
    return found


def _origin(size: torch.SymInt, node: fx.Node) -> fx.Node | tuple[fx.Node, int] | None:
    """The first input and axis that have a size, or the node before ``node`` that computes it.

    Sizes of inputs are taken from these, as in torch's decomposition.
    """
    before: list[fx.Node] = list(takewhile(lambda other: other is not node, node.graph.nodes))
    given: tuple[fx.Node, int] | None = next(
        (
            (other, axis)
            for other in before
            if other.op == "placeholder" and isinstance(other.meta.get("val"), Tensor)
            for axis, own in enumerate(other.meta["val"].shape)
            if not isinstance(own, int) and statically_known_true(own == size)
        ),
        None,
    )
    for other in before:
        if given is not None and other.target == ATEN.sym_size.int and other.args == given:
            return other
        known = other.meta.get("val")
        if given is None and isinstance(known, torch.SymInt) and statically_known_true(known == size):
            return other
    return given


def _same_shape(source: fx.Node, node: fx.Node) -> bool:
    before, after = source.meta["val"].shape, node.meta["val"].shape
    return len(before) == len(after) and all(
        statically_known_true(one == other) for one, other in zip(before, after, strict=True)
    )
