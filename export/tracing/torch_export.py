"""torch module -> graph, by torch's exporter."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import torch
from torch import Tensor, nn

from tightbeam.export.counts import count
from tightbeam.export.errors import ExportError, causes, first_line
from tightbeam.export.tracing.capture import capture
from tightbeam.graph_passes.builder import read_instead

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TRACE_OPSET = 23
PROTOBUF_BYTES = 1024
"""Bytes up to which an initialiser passes through the protobuf message."""
REPORT = "please report this with the checkpoint's config.json"


def trace_module(
    module: nn.Module,
    args: tuple[Tensor, ...],
    dynamic_shapes: Any,
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str]],
) -> gs.Graph:
    """Trace a module once.

    Parameters
    ----------
    module
        In eval mode.
    args
        Example inputs: distinct tensors (one object given twice is traced as one input), with dynamic sizes above 1
        (0 and 1 are traced as constants).
    dynamic_shapes
        Dynamic dimensions of ``args``, in the form of ``torch.onnx.export``.
    inputs, outputs
        Names and shapes of the graph's inputs and outputs, in order; a string is a dynamic size.

    Returns
    -------
    gs.Graph
        The graph; its weights share memory with the module's.

    Raises
    ------
    ExportError
        torch's exporter fails, or fixes a size that must be dynamic.
    """
    with _quiet_exporter():
        try:
            program = _export(module, args, dynamic_shapes, list(inputs), list(outputs))
        except Exception as error:  # whose message lists the steps of an export; its first cause says why
            reason = first_line(list(causes(error))[-1])
            raise ExportError(
                f"torch.onnx.export could not trace {type(module).__name__}: {reason}; {REPORT}"
            ) from error
    assert program is not None
    graph = _to_graphsurgeon(program.model)
    _drop_transposes_there_and_back(graph)
    for tensors, declared in ((graph.inputs, inputs), (graph.outputs, outputs)):
        _check_dynamic(tensors, declared)
        for tensor in tensors:
            tensor.shape = list(declared[tensor.name])
    return graph


def _export(
    module: nn.Module, args: tuple[Tensor, ...], dynamic_shapes: Any, inputs: list[str], outputs: list[str]
) -> torch.onnx.ONNXProgram | None:
    """Export a program that is captured here, which takes half the time; if that fails, export the module."""
    names: Any = {"input_names": inputs, "output_names": outputs, "verbose": False, "opset_version": TRACE_OPSET}
    try:
        with _counted_layers(module):
            program = capture(module, args, dynamic_shapes)
        count(f"converting {len(program.graph.nodes):,} operators to ONNX")
        return torch.onnx.export(program, args, dynamo=True, **names)
    except Exception:  # such as an operator without a conversion, which torch has to decompose
        return torch.onnx.export(module, args, dynamo=True, dynamic_shapes=dynamic_shapes, **names)


@contextmanager
def _counted_layers(module: nn.Module) -> Iterator[None]:
    """Context in which each layer of a module counts as it is run."""
    lists = [list(part) for part in module.modules() if isinstance(part, nn.ModuleList)]
    layers = max(lists, key=len, default=[])
    done = 0

    def add(*_: Any) -> None:
        nonlocal done
        done += 1
        count("layers captured", done, len(layers))

    hooks = [layer.register_forward_hook(add) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _check_dynamic(tensors: list[gs.Tensor], declared: Mapping[str, Sequence[int | str]]) -> None:
    """Raise ExportError unless names and dynamic sizes are as declared; the exporter fixes sizes silently."""
    if [tensor.name for tensor in tensors] != list(declared):
        raise ExportError(f"the trace has {[tensor.name for tensor in tensors]}, expected {list(declared)}; {REPORT}")
    for tensor in tensors:
        for axis, (size, wanted) in enumerate(zip(tensor.shape, declared[tensor.name], strict=True)):
            if isinstance(wanted, str) == isinstance(size, int) or (isinstance(wanted, int) and size != wanted):
                raise ExportError(
                    f"the trace fixed axis {axis} of {tensor.name} to {size}, expected {wanted}; {REPORT}"
                )


def _to_graphsurgeon(model: ir.Model) -> gs.Graph:
    """Convert an onnx_ir model; its weights become arrays that share memory with the torch model."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        assert tensor is not None
        if tensor.nbytes > PROTOBUF_BYTES:
            arrays[name] = tensor.numpy()
            value.const_value = ir.ExternalTensor(
                "weights", 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(list(tensor.shape.numpy())), name=name
            )
    proto: onnx.ModelProto = ir.to_proto(model)
    del proto.graph.value_info[:]
    graph = gs.import_onnx(proto)
    tensors = graph.tensors()
    for name, array in arrays.items():
        if name in tensors:
            tensors[name].values = array
    for tensor in tensors.values():
        if isinstance(tensor, gs.Constant):
            tensor.data_location = None
    return graph.cleanup().toposort()


def _drop_transposes_there_and_back(graph: gs.Graph) -> None:
    """Drop pairs of Transposes that undo each other, so that passes find the projection behind them."""
    for node in [node for node in graph.nodes if node.op == "Transpose"]:
        before = node.inputs[0].inputs[0] if node.inputs[0].inputs else None
        if before is None or before.op != "Transpose" or node.outputs[0] in graph.outputs:
            continue
        perm = node.attrs["perm"]
        if [before.attrs["perm"][axis] for axis in perm] == list(range(len(perm))):
            read_instead(node.outputs[0], before.inputs[0])
    graph.cleanup().toposort()


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Context without the exporter's log lines and warnings."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
