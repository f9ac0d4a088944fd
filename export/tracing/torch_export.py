"""Checkpoint -> canonical graphs: one trace with torch's exporter, from which every variant is rewritten.

The canonical graphs hold no cache trick at all; those of a decoder-only model stand in ``causal``, those of an
encoder-decoder are:

- encoder: ``input_ids`` int64 [B, N], ``attention_mask`` int64 [B, N] -> ``encoder_hidden_states`` [B, N, D]
- decoder, one new token a row: ``tokens`` int64 [R, 1], ``positions`` int64 [R, 1], ``encoder_hidden_states``
  [R, N, D], ``attention_mask`` int64 [R, N], ``past.<l>.key`` and ``past.<l>.value`` [R, H, T, K]
  -> ``logits`` [R, 1, vocabulary], ``present.<l>.key`` and ``present.<l>.value`` [R, H, T + 1, K]

Attention is the standard ``Attention`` operator of opset 23; keys and values are projected inside the graph, for
cross-attention from ``encoder_hidden_states``, for self-attention from the new token. Where two streams run in a step
(``graph_passes.streams``), the new token's keys are followed by those of the prediction, and what is added to the
scores [R, H, 2, T + 2] says which stream sees what.
"""

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

from tightbeam.export.errors import ExportError, first_line
from tightbeam.graph_passes.builder import read_instead

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TRACE_OPSET = 23
INLINE_BYTES = 1024
"""Initialisers larger than this never pass through a protobuf message."""


def trace_module(
    module: nn.Module,
    args: tuple[Tensor, ...],
    dynamic_shapes: Any,
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Mapping[str, Sequence[int | str]],
) -> gs.Graph:
    """The graph of a module. ``inputs`` and ``outputs``: their names and shapes, in order; a string is a dynamic size.

    ``args``: distinct tensors (one object given twice is traced as one input), of dynamic sizes above 1 (0 and 1 are
    traced as constants). ``dynamic_shapes``: as ``torch.onnx.export`` takes them.
    """
    with _quiet_exporter():
        try:
            program = torch.onnx.export(
                module,
                args,
                dynamo=True,
                opset_version=TRACE_OPSET,
                dynamic_shapes=dynamic_shapes,
                input_names=list(inputs),
                output_names=list(outputs),
                verbose=False,
            )
        except Exception as error:
            raise ExportError(
                f"torch.onnx.export could not trace {type(module).__name__}: {first_line(error)}; "
                "please report this with the checkpoint's config.json"
            ) from error
    assert program is not None
    graph = _to_graphsurgeon(program.model)
    _drop_transposes_there_and_back(graph)
    for tensors, declared in ((graph.inputs, inputs), (graph.outputs, outputs)):
        _check_dynamic(tensors, declared)
        for tensor in tensors:
            tensor.shape = list(declared[tensor.name])
    return graph


def _check_dynamic(tensors: list[gs.Tensor], declared: Mapping[str, Sequence[int | str]]) -> None:
    """The exporter specialises silently; what must be dynamic is checked by name."""
    if [tensor.name for tensor in tensors] != list(declared):
        raise ExportError(f"the trace has {[tensor.name for tensor in tensors]}, expected {list(declared)}")
    for tensor in tensors:
        for axis, (size, wanted) in enumerate(zip(tensor.shape, declared[tensor.name], strict=True)):
            if isinstance(wanted, str) == isinstance(size, int) or (isinstance(wanted, int) and size != wanted):
                raise ExportError(f"the trace fixed axis {axis} of {tensor.name} to {size}, expected {wanted}")


def _to_graphsurgeon(model: ir.Model) -> gs.Graph:
    """Weights are handed over as arrays that share memory with the torch model, not through the message."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        assert tensor is not None
        if tensor.nbytes > INLINE_BYTES:
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
    """Two Transposes in a row that undo each other are none, which a pass that looks for a projection need not know."""
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
    """torch's exporter talks about optional packages and deprecations of its own."""
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
