"""Graphs -> ONNX files whose weights are external data in one file, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.ir.tensor import LazyValues
from onnx_graphsurgeon.logger import G_LOGGER

from tightbeam.deploy.bundle.manifest import WEIGHTS, GraphEntry
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import BundleError
from tightbeam.export.writing.entries import sizes_of, states_of
from tightbeam.export.writing.weights import WeightPlan, are_equal, plan_weights, write_weights
from tightbeam.graph_passes import ModelGraphs
from tightbeam.graph_passes.model import Array, PassError
from tightbeam.graph_passes.tensor_types import INLINE_BYTES
from tightbeam.graph_passes.tensorrt.standard_operators import REPLACED
from tightbeam.plugins.ops import DOMAIN, IR_VERSION, OPERATORS, OPSET, VERSION, functions

ON_CPU_ALONE = [(DOMAIN, name) for name, operator in OPERATORS.items() if not operator.gpu and name not in REPLACED]

G_LOGGER.severity = G_LOGGER.ERROR  # its warnings go to standard output


def write_graphs(graphs: ModelGraphs, folder: Path) -> None:
    """Write ``encoder.onnx``, ``decoder.onnx``, ``prompt.onnx`` and ``prefill.onnx`` if there are such graphs, and
    ``weights.safetensors``, each weight once.

    Parameters
    ----------
    graphs
        The graphs of a variant; they are unchanged.
    folder
        An existing folder.

    Raises
    ------
    OSError
        A file cannot be written.
    PassError
        Two constants of a graph have one name.
    """
    plan = _plan(graphs)
    write_weights(folder / WEIGHTS, plan)
    for name, graph in graphs.named().items():
        onnx.save_model(_to_model(graph, name, plan), folder / f"{name}.onnx")


def weight_bytes(graphs: ModelGraphs) -> int:
    """Bytes of the weights that ``write_graphs`` would write, each once."""
    return sum(array.nbytes for array in _plan(graphs).arrays)


def _plan(graphs: ModelGraphs) -> WeightPlan:
    constants = ((name, tensor) for name, graph in graphs.named().items() for tensor in _weights(graph))
    return plan_weights({f"{name}.{tensor.name}": tensor.values for name, tensor in constants})


def _weights(graph: gs.Graph) -> list[gs.Constant]:
    """The large constants, each name once. Raises PassError for a name of two, since a file holds one of them alone."""
    constants: dict[str, gs.Constant] = {}
    for tensor in (tensor for node in graph.nodes for tensor in node.inputs if isinstance(tensor, gs.Constant)):
        first = constants.setdefault(tensor.name, tensor)
        if not are_equal(first.values, tensor.values):
            raise PassError(f"two constants have the name {tensor.name}; please report this with the config.json")
    return [constant for constant in constants.values() if constant.values.nbytes > INLINE_BYTES]


def _to_model(graph: gs.Graph, name: str, plan: WeightPlan) -> onnx.ModelProto:
    """The ONNX message of a graph, without its weights; the graph itself is unchanged."""
    graph = graph.copy()
    graph.name = name
    graph.opset = OPSET
    graph.import_domains = None
    graph.functions = []  # a graph that was read from a file has some; the current ones are added below
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
    """A copy in which weights are graph inputs, for the checker, which looks for files in the current folder."""
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


def read_graphs(bundle: Bundle) -> ModelGraphs:
    """Read the graphs of a bundle, with the types of all tensors. Operators of the CPU alone become their functions,
    but for those that ``standard_operators`` replaces.

    Parameters
    ----------
    bundle
        A bundle whose files were checked.

    Returns
    -------
    ModelGraphs
        The graphs; their weights are mapped from the file, not read.

    Raises
    ------
    BundleError
        A file is not an ONNX graph over the bundle's weights.
    """
    manifest = bundle.manifest
    weights = np.memmap(bundle.file(manifest.weights), np.uint8, mode="r") if manifest.weights.bytes else None
    encoder, decoder = (_read_graph(bundle, entry, weights) for entry in (manifest.encoder, manifest.decoder))
    return ModelGraphs(encoder, decoder, sizes_of(manifest), states_of(manifest))


def _read_graph(bundle: Bundle, entry: GraphEntry, weights: Array | None) -> gs.Graph:
    path = bundle.file(entry)
    try:
        model = onnx.load(path, load_external_data=False)
        made_for = next((opset.version for opset in model.opset_import if opset.domain == DOMAIN), VERSION)
        if made_for != VERSION:
            raise ValueError(f"its operators are of version {made_for}, expected {VERSION}")
        unknown = {node.op_type for node in model.graph.node if node.domain == DOMAIN} - OPERATORS.keys()
        if unknown:
            raise ValueError(f"it has unknown operators: {', '.join(sorted(unknown))}")
        onnx.checker.check_model(_without_external_data(model))
        where = {tensor.name: _place(tensor) for tensor in model.graph.initializer if tensor.external_data}
        model = onnx.inliner.inline_selected_functions(model, ON_CPU_ALONE)
        model = onnx.shape_inference.infer_shapes(model)
        del model.functions[:]
        graph = gs.import_onnx(model)
        tensors = graph.tensors()
        for name, (offset, dtype, shape) in where.items():
            if weights is None:
                raise ValueError(f"{name} is missing, {WEIGHTS} is empty")
            size = int(np.prod(shape)) * dtype.itemsize
            tensors[name].values = weights[offset : offset + size].view(dtype).reshape(shape)
    except Exception as error:  # protobuf, onnx and graphsurgeon raise all kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BundleError(f"{path} cannot be read as a graph ({reason}); export the model again") from error
    return graph


def _place(tensor: onnx.TensorProto) -> tuple[int, np.dtype[Any], tuple[int, ...]]:
    """Offset, type and shape of a weight in the weights file."""
    fields = {field.key: field.value for field in tensor.external_data}
    if fields["location"] != WEIGHTS:
        raise ValueError(f"{tensor.name} is in {fields['location']!r}, expected {WEIGHTS}")
    return int(fields["offset"]), onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type), tuple(tensor.dims)
