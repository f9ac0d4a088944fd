"""Turn operators of ``plugins/`` into the form in which TensorRT's parser finds plugins, and back.

    tightbeam::SourceAttention(q, k, "", m)    ->    SourceAttention(q, k, m, tensors = "query keys flags -> output")
    functions of the domain                    ->    removed

A plugin is found by its operator's name in the default domain. The node has no empty inputs: its attribute ``tensors``
names the inputs that it has. Another attribute names inputs that TensorRT has to read on the host, because they give
the size of an output. ``from_plugin_nodes`` is the way back, so that TensorRT's graphs can run elsewhere.

Works on ONNX messages, since graphsurgeon cannot represent such a graph. Saves nothing.
"""

from __future__ import annotations

import onnx

from tightbeam.plugins.ops import DOMAIN, OPERATORS, OPSET, VERSION, functions
from tightbeam.plugins.tensorrt.plugin import TENSORS

__all__ = ["from_plugin_nodes", "to_plugin_nodes"]

SIZES = "tensorrt_plugin_shape_input_indices"
"""Attribute of TensorRT's parser: indices of inputs whose values are sizes."""


def to_plugin_nodes(model: onnx.ModelProto) -> int:
    """Make plugin nodes of all operators of ``plugins/``, in place; return their number."""
    del model.functions[:]
    kept = [entry for entry in model.opset_import if entry.domain != DOMAIN]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    nodes = [node for node in model.graph.node if node.domain == DOMAIN]
    for node in nodes:
        operator = OPERATORS[node.op_type]
        inputs = [(name, tensor) for name, tensor in zip(operator.input_names, node.input, strict=False) if tensor]
        outputs = [(name, tensor) for name, tensor in zip(operator.output_names, node.output, strict=False) if tensor]
        del node.input[:], node.output[:]
        node.input.extend(tensor for _, tensor in inputs)
        node.output.extend(tensor for _, tensor in outputs)
        names = " ".join([*(name for name, _ in inputs), "->", *(name for name, _ in outputs)])
        node.attribute.append(onnx.helper.make_attribute(TENSORS, names))
        sizes = [index for index, (name, _) in enumerate(inputs) if name in operator.sizes]
        if sizes:
            node.attribute.append(onnx.helper.make_attribute(SIZES, sizes))
        node.domain = ""
    return len(nodes)


def from_plugin_nodes(model: onnx.ModelProto) -> None:
    """Reverse ``to_plugin_nodes``, in place."""
    for node in model.graph.node:
        names = next((attribute.s.decode() for attribute in node.attribute if attribute.name == TENSORS), None)
        if node.domain or names is None:
            continue
        operator = OPERATORS[node.op_type]
        given = dict(zip(names.replace("->", " ").split(), [*node.input, *node.output], strict=True))
        del node.input[:], node.output[:]
        node.input.extend(_in_order(operator.input_names, given))
        node.output.extend(_in_order(operator.output_names, given))
        kept = [attribute for attribute in node.attribute if attribute.name not in (TENSORS, SIZES)]
        del node.attribute[:]
        node.attribute.extend(kept)
        node.domain = DOMAIN
    model.functions.extend(functions(model.graph.node))
    if model.functions:
        model.opset_import.append(onnx.helper.make_opsetid(DOMAIN, VERSION))
    assert any(entry.domain == "" and entry.version == OPSET for entry in model.opset_import)


def _in_order(names: tuple[str, ...], given: dict[str, str]) -> list[str]:
    tensors = [given.get(name, "") for name in names]
    while tensors and not tensors[-1]:
        tensors.pop()
    return tensors
