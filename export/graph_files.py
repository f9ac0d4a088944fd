"""Graphs -> ONNX messages whose weights stand in one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.ir.tensor import LazyValues

from tightbeam.deploy.bundle import WEIGHTS, TensorEntry
from tightbeam.export.weights import WeightPlan, plan_weights, write_weights
from tightbeam.graph_passes import ModelGraphs
from tightbeam.plugins import DOMAIN, IR_VERSION, OPSET, VERSION, functions

INLINE_BYTES = 256
"""Constants up to this size stay in the graph, where shape inference can read them."""


def write_graphs(graphs: ModelGraphs, folder: Path) -> None:
    """Write ``encoder.onnx``, ``decoder.onnx`` and the weights that both point into. Raises OSError."""
    named = {"encoder": graphs.encoder, "decoder": graphs.decoder}
    constants = {f"{name}.{tensor.name}": tensor for name, graph in named.items() for tensor in _weights(graph)}
    plan = plan_weights({name: tensor.values for name, tensor in constants.items()})
    write_weights(folder / WEIGHTS, plan)
    for name, graph in named.items():
        onnx.save_model(_to_model(graph, name, plan), folder / f"{name}.onnx")


def tensor_entries(tensors: list[gs.Tensor]) -> tuple[TensorEntry, ...]:
    """Graph inputs or outputs for ``bundle.json``."""
    return tuple(
        TensorEntry(name=tensor.name, dtype=np.dtype(tensor.dtype).name, shape=tuple(tensor.shape))
        for tensor in tensors
    )


def _weights(graph: gs.Graph) -> list[gs.Constant]:
    return [
        tensor
        for tensor in graph.tensors().values()
        if isinstance(tensor, gs.Constant) and tensor.values.nbytes > INLINE_BYTES
    ]


def _to_model(graph: gs.Graph, name: str, plan: WeightPlan) -> onnx.ModelProto:
    """The message without weights; the graph itself keeps its arrays."""
    graph = graph.copy()
    graph.name = name
    graph.opset = OPSET
    graph.import_domains = None
    graph.functions = []  # of a graph that was read from a file; they are made anew below
    graph.producer_name = "tightbeam"
    for tensor in _weights(graph):
        tensor.values = LazyValues(_external(tensor, plan.offsets[f"{name}.{tensor.name}"]))
    model: onnx.ModelProto = gs.export_onnx(graph, do_type_check=True)
    model.ir_version = IR_VERSION
    model.functions.extend(functions(model.graph.node))
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("", OPSET))
    if model.functions:
        model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, VERSION))
    onnx.checker.check_model(_without_external_data(model))
    return model


def _external(tensor: gs.Constant, offset: int) -> onnx.TensorProto:
    values = tensor.values
    proto = onnx.TensorProto(
        name=tensor.name,
        data_type=onnx.helper.np_dtype_to_tensor_dtype(values.dtype),
        dims=values.shape,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    where: Mapping[str, object] = {"location": WEIGHTS, "offset": offset, "length": values.nbytes}
    for key, value in where.items():
        proto.external_data.add(key=key, value=str(value))
    return proto


def _without_external_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy for the checker, which would look for the weights beside the current folder."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            declared = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            copy.graph.input.append(declared)
    kept = [t for t in copy.graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL]
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept)
    return copy
