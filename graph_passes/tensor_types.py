"""Element types of all tensors of a graph, by ONNX's own inference: a trace records only some."""

from __future__ import annotations

import itertools
from math import isqrt

import onnx
import onnx_graphsurgeon as gs

from tightbeam.graph_passes.model import PassError
from tightbeam.plugins.ops import DOMAIN, IR_VERSION, OPSET, VERSION, functions

INLINE_BYTES = 256
"""Largest constants that stay in the graph for the inference of shapes and types, in bytes."""


def tensor_types(graph: gs.Graph, where: str) -> dict[str, int]:
    """Infer the element types of a graph: a type of ``onnx.TensorProto`` by the name of each tensor.

    Parameters and exceptions are those of :func:`tensor_infos`.
    """
    return {name: info.elem_type for name, info in tensor_infos(graph, where).items()}


def tensor_infos(graph: gs.Graph, where: str) -> dict[str, onnx.TypeProto.Tensor]:
    """Infer types and, as far as they are known, shapes of a graph's tensors.

    Parameters
    ----------
    graph
        Stays as it is.
    where
        Names of the pass and the graph, for the error.

    Returns
    -------
    dict
        Type and shape by name of the tensor.

    Raises
    ------
    PassError
        If the inputs of a node have types that it does not take, or a type cannot be inferred.
    """
    bare = graph.copy()
    bare.functions = []
    bare.import_domains = None
    for tensor in bare.tensors().values():
        if isinstance(tensor, gs.Constant) and _bytes(tensor) > INLINE_BYTES:
            bare.inputs.append(tensor.to_variable(tensor.dtype, tensor.shape))
            tensor.type = "tensor_type"  # graphsurgeon 0.6.1 leaves it unset
        elif isinstance(tensor, gs.Variable) and tensor.inputs:
            tensor.dtype = tensor.shape = None  # a rewrite may have left what a tensor was before
    model: onnx.ModelProto = gs.export_onnx(bare, do_type_check=False)
    model.ir_version = IR_VERSION
    model.functions.extend(functions(model.graph.node))
    del model.opset_import[:]
    model.opset_import.extend([onnx.helper.make_opsetid("", OPSET), onnx.helper.make_opsetid(DOMAIN, VERSION)])
    try:
        found = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
    except onnx.shape_inference.InferenceError as error:
        reason = " ".join(str(error).split())
        raise PassError(f"{where}: the types do not agree: {reason}") from error
    values = (*found.input, *found.output, *found.value_info)
    infos = {value.name: value.type.tensor_type for value in values}
    for constant in found.initializer:
        kind = onnx.helper.make_tensor_type_proto(constant.data_type, list(constant.dims))
        infos[constant.name] = kind.tensor_type
    for name in graph.tensors():
        if name and (name not in infos or not infos[name].elem_type):
            raise PassError(f"{where}: the type of {name} cannot be inferred")
    return infos


def example_shapes(graph: gs.Graph) -> dict[str, list[int]]:
    """Infer sizes of a graph's tensors in a run in which each named dimension has a size of its own.

    So a size that a Reshape is to infer is known too, as are the sizes behind shapes that the graph computes.

    Parameters
    ----------
    graph
        Stays as it is.

    Returns
    -------
    dict
        Sizes by name of the tensor; 0 for a size that is not known. Tensors of unknown shape are missing.
    """
    sizes: dict[object, int] = {}
    primes = (number for number in itertools.count(101, 2) if all(number % d for d in range(3, 1 + isqrt(number), 2)))
    bare = graph.copy()
    bare.functions, bare.import_domains = [], None
    given = {id(tensor) for tensor in bare.inputs}
    for tensor in bare.tensors().values():
        ours = any(node.domain == DOMAIN for node in tensor.inputs)  # the inference knows no operator of ``plugins/``
        if isinstance(tensor, gs.Constant):
            if _bytes(tensor) > INLINE_BYTES:
                bare.inputs.append(tensor.to_variable(tensor.dtype, tensor.shape))
                tensor.type = "tensor_type"
        elif tensor.inputs and not ours:
            tensor.dtype = tensor.shape = None
        elif tensor.shape is not None and (ours or id(tensor) in given):
            for name in tensor.shape:
                if not isinstance(name, int) and name not in sizes:
                    sizes[name] = next(primes)
            tensor.shape = [size if isinstance(size, int) else sizes[size] for size in tensor.shape]
    model = gs.export_onnx(bare, do_type_check=False)
    model.ir_version = IR_VERSION
    found = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    values = (*found.input, *found.output, *found.value_info)
    infos = {value.name: value.type.tensor_type for value in values if value.type.tensor_type.HasField("shape")}
    return {name: [dim.dim_value for dim in info.shape.dim] for name, info in infos.items()}


def _bytes(tensor: gs.Constant) -> int:
    """Size of a constant without loading it."""
    return int(tensor._values.nbytes)
