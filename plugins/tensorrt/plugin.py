"""The TensorRT plugin of every operator: one ``IPluginV3`` made from the operator's table.

Shapes, types, attributes and in-place outputs come from the table (``plugins/schema.py``). The kernels and their
launches come from ``launch_plan.h`` and ``kernel_cuda.cuh``. TensorRT passes a node's tensors without their names, so
the node lists the names in its attribute ``tensors``.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.schema import FLOAT, Attribute, Input, Operator, Output
from tightbeam.plugins.tensorrt.ahead import ProfiledCall, ProfiledTensor, profiled_calls
from tightbeam.plugins.tensorrt.distribution import TensorRT, load_tensorrt
from tightbeam.plugins.tensorrt.errors import TensorRTError
from tightbeam.plugins.tensorrt.launcher import Launcher, default_launcher
from tightbeam.plugins.tensorrt.native import FLOAT_TYPES, Gpu, Plan, TensorAt, plan
from tightbeam.plugins.tensorrt.shapes import largest_shapes, output_shapes

__all__ = ["NAMESPACE", "TENSORS", "VERSION", "make_plugin", "plugin_errors", "register_plugins"]

NAMESPACE = ""
VERSION = "1"
TENSORS = "tensors"
"""The attribute of a node that names its inputs and outputs: "scores history -> blocked"."""
RENAMED = {"prior_output": "prefix_output", "prior_lse": "prefix_lse"}
"""Name of a tensor in engines of earlier versions -> its present name."""
LARGEST_GPU = Gpu(multiprocessors=256, shared_bytes=227 * 1024)
"""A bound of all GPUs: a workspace for it is large enough for every GPU."""
Result = TypeVar("Result")
_made: list[Any] = []
"""Every plugin: TensorRT-RTX 1.7 frees the plugins that it gets, so Python must not free them too."""
log = logging.getLogger(__name__)

plugin_errors: list[str] = []
"""Errors of plugins since this list was last cleared: TensorRT reports only that a plugin failed."""


@dataclass(frozen=True)
class Node:
    """A node of an operator: the table's entries of the tensors that it has, and the values of its attributes."""

    operator: Operator
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    attributes: Mapping[str, float]

    @classmethod
    def of(cls, name: str, tensors: str, attributes: Mapping[str, float]) -> Node:
        """Parse the attribute ``tensors``. Raises TensorRTError if a tensor is unknown or missing."""
        operator = OPERATORS[name]
        for former, new in RENAMED.items():
            tensors = tensors.replace(former, new)
        left, arrow, right = tensors.partition("->")
        named = (left.split(), right.split())
        known = (operator.input_names, operator.output_names)
        needed = {*known[0], *known[1]} - operator.optional
        wrong = [given for given, order in zip(named, known, strict=True) if given != [n for n in order if n in given]]
        missing = sorted(needed - {*named[0], *named[1]})
        if not arrow or wrong or missing:
            raise TensorRTError(
                f"{name}: the attribute {TENSORS} is {tensors!r}, expected names of {' '.join(known[0])} -> "
                f"{' '.join(known[1])}, in this order, with {', '.join(sorted(needed))}; build the engine again"
            )
        required = {entry.name for entry in operator.attributes if entry.default is None}
        if not required <= attributes.keys():
            lacking = ", ".join(sorted(required - attributes.keys()))
            raise TensorRTError(f"{name}: attribute {lacking} is missing; export the model again")
        return cls(
            operator,
            tuple(entry for entry in operator.inputs if entry.name in named[0]),
            tuple(entry for entry in operator.outputs if entry.name in named[1]),
            dict(attributes),
        )

    @property
    def tensors(self) -> str:
        return " ".join([*(entry.name for entry in self.inputs), "->", *(entry.name for entry in self.outputs)])

    @property
    def on_device(self) -> tuple[Input, ...]:
        """All inputs but scalars that give a size, which TensorRT reads on the host."""
        return tuple(entry for entry in self.inputs if entry.gives is None)


def register_plugins() -> TensorRT:
    """Register the plugins of all operators with TensorRT, once in a process.

    Returns
    -------
    TensorRT
        The installed TensorRT.

    Raises
    ------
    TensorRTError
        TensorRT cannot be loaded, or refuses a plugin.
    """
    found = load_tensorrt()
    _register(found)
    return found


def make_plugin(name: str, tensors: str, attributes: Mapping[str, float], launcher: Launcher | None = None) -> Any:
    """Create the plugin of one node.

    Parameters
    ----------
    name
        Name of the operator.
    tensors
        The node's attribute ``tensors``.
    attributes
        Values by name.
    launcher
        Launches the kernels; by default :func:`default_launcher` on the first run.

    Returns
    -------
    IPluginV3
        The object that TensorRT calls.

    Raises
    ------
    TensorRTError
        TensorRT cannot be loaded, or a tensor or an attribute is unknown or missing.
    """
    return _classes(load_tensorrt())[0](Node.of(name, tensors, attributes), launcher)


@functools.cache
def _register(found: TensorRT) -> tuple[Any, ...]:
    registry = found.trt.get_plugin_registry()
    _, creator_class = _classes(found)
    creators = tuple(creator_class(operator) for operator in OPERATORS.values() if operator.gpu)
    for creator in creators:
        if not registry.register_creator(creator, NAMESPACE):
            raise TensorRTError(f"{found.distribution} {found.version} refuses the plugin {creator.name}")
    return creators  # TensorRT holds no references


def _guarded(failed: Result) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Catch every exception of a callback, record it and return ``failed``: TensorRT, in C++, cannot handle one.

    TensorRT-RTX 1.7 crashes if a format is refused or a clone fails. So these callbacks report success, and the builder
    reads ``plugin_errors`` afterwards.
    """

    def wrap(method: Callable[..., Result]) -> Callable[..., Result]:
        @functools.wraps(method)
        def guarded(self: Any, *arguments: Any) -> Result:
            try:
                return method(self, *arguments)
            except Exception as error:
                message = str(error) if isinstance(error, TensorRTError) else f"{type(error).__name__}: {error}"
                plugin_errors.append(message)
                log.error("%s", message)
                return failed

        return guarded

    return wrap


@functools.cache
def _classes(found: TensorRT) -> tuple[type, type]:
    """Classes of the plugin and of its creator, derived from classes of the installed TensorRT."""
    trt = found.trt
    types = found.types
    float_types = {types[name]: name for name in FLOAT_TYPES}

    class Expressions:
        """Arithmetic of symbolic sizes while an engine is built."""

        def __init__(self, builder: Any) -> None:
            self.builder = builder

        def constant(self, value: int) -> Any:
            return self.builder.constant(value)

        def _combine(self, operation: Any, a: Any, b: Any) -> Any:
            return self.builder.operation(operation, a, b)

        def add(self, a: Any, b: Any) -> Any:
            return self._combine(trt.DimensionOperation.SUM, a, b)

        def subtract(self, a: Any, b: Any) -> Any:
            return self._combine(trt.DimensionOperation.SUB, a, b)

        def multiply(self, a: Any, b: Any) -> Any:
            return self._combine(trt.DimensionOperation.PROD, a, b)

        def divide(self, a: Any, b: Any) -> Any:
            return self._combine(trt.DimensionOperation.FLOOR_DIV, a, b)

    def as_dimensions(shape: Sequence[Any]) -> Any:
        dimensions = trt.DimsExprs(len(shape))
        for index, size in enumerate(shape):
            dimensions[index] = size
        return dimensions

    def float_type_of(node: Node, given: Sequence[Any]) -> Any:
        """Type of the first input that has the operator's float type."""
        return next(kind for entry, kind in zip(node.on_device, given, strict=True) if entry.type == FLOAT)

    class Plugin(trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuildV2, trt.IPluginV3OneRuntime):  # type: ignore[misc, name-defined]
        def __init__(self, node: Node, launcher: Launcher | None = None) -> None:
            for base in (trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuildV2, trt.IPluginV3OneRuntime):
                base.__init__(self)
            self.node = node
            self.launcher = launcher
            self.plugin_name = node.operator.name
            self.plugin_version = VERSION
            self.plugin_namespace = NAMESPACE
            self.num_outputs = len(node.outputs)
            _made.append(self)

        def get_capability_interface(self, kind: Any) -> Any:
            return self

        def clone(self) -> Any:
            return Plugin(self.node, self.launcher)

        # ---- while an engine is built

        @_guarded([])
        def get_output_data_types(self, input_types: Sequence[Any]) -> list[Any]:
            chosen = float_type_of(self.node, input_types)
            return [chosen if entry.type == FLOAT else types[entry.type] for entry in self.node.outputs]

        @_guarded([])
        def get_output_shapes(self, inputs: Sequence[Any], shape_inputs: Sequence[Any], builder: Any) -> list[Any]:
            node = self.node
            letters = [entry.gives for entry in node.inputs if entry.gives is not None]
            given = {letter: expression[0] for letter, expression in zip(letters, shape_inputs, strict=True)}
            expressions = Expressions(builder)
            shapes = {
                entry.name: [dimensions[i] for i in range(len(dimensions))]
                for entry, dimensions in zip(node.on_device, inputs, strict=True)
            }
            found = output_shapes(node.operator, shapes, given, expressions)
            return [as_dimensions(found[entry.name]) for entry in node.outputs]

        @_guarded(True)
        def supports_format_combination(self, position: int, tensors: Sequence[Any], input_count: int) -> bool:
            described = [tensor.desc for tensor in tensors]
            entries: tuple[Input | Output, ...] = (*self.node.on_device, *self.node.outputs)
            if described[position].format != trt.TensorFormat.LINEAR:
                return False
            kind, entry = described[position].type, entries[position]
            if entry.type != FLOAT:
                return bool(kind == types[entry.type])
            first = next(index for index, other in enumerate(entries) if other.type == FLOAT)
            return kind in float_types and (position <= first or kind == described[first].type)

        def configure_plugin(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            pass

        @_guarded(-1)
        def get_aliased_input(self, output: int) -> int:
            updates = self.node.outputs[output].updates
            names = [entry.name for entry in self.node.on_device]
            return names.index(updates) if updates is not None else -1

        @_guarded(0)
        def get_workspace_size(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
            """Workspace for the largest shapes and the largest GPU."""
            node = self.node
            chosen = float_types[float_type_of(node, [tensor.desc.type for tensor in inputs])]
            profiled_calls.add(self._profiled(chosen, inputs, outputs))
            names = [entry.name for entry in node.on_device] + [entry.name for entry in node.outputs]
            most = {name: tuple(tensor.max) for name, tensor in zip(names, (*inputs, *outputs), strict=True)}
            plans = []
            for shapes in largest_shapes(node.operator, most):
                before, after = ([shapes[entry.name] for entry in own] for own in (node.on_device, node.outputs))
                plans.append(self._plan(chosen, *self._tensors(before, after), LARGEST_GPU))
            return max(found.most_workspace_bytes for found in plans)

        def _profiled(self, float_type: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> ProfiledCall:
            node = self.node

            def ranged(names: Iterable[str], tensors: Sequence[Any]) -> tuple[ProfiledTensor, ...]:
                return tuple(
                    ProfiledTensor(name, tuple(tensor.min), tuple(tensor.max))
                    for name, tensor in zip(names, tensors, strict=True)
                )

            before = ranged((entry.name for entry in node.on_device), inputs)
            after = ranged((entry.name for entry in node.outputs), outputs)
            return ProfiledCall(node.operator.name, float_type, tuple(node.attributes.items()), before, after)

        @_guarded(None)
        def get_fields_to_serialize(self) -> Any:
            values = [
                (entry.name, np.array([self.node.attributes[entry.name]], dtype), kind)
                for entry, dtype, kind in _attribute_kinds(trt, self.node.operator)
                if entry.name in self.node.attributes
            ]
            values.append((TENSORS, np.frombuffer(self.node.tensors.encode(), np.int8), trt.PluginFieldType.CHAR))
            self.serialized = values  # keeps the arrays alive: TensorRT takes only their addresses
            return trt.PluginFieldCollection([trt.PluginField(*value) for value in values])

        # ---- while it runs

        def attach_to_context(self, context: Any) -> Any:
            return self.clone()

        def on_shape_change(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            pass

        def set_tactic(self, tactic: int) -> None:
            pass

        @_guarded(-1)
        def enqueue(
            self,
            input_desc: Sequence[Any],
            output_desc: Sequence[Any],
            inputs: Sequence[int],
            outputs: Sequence[int],
            workspace: int,
            stream: int,
        ) -> int:
            """Launch the kernels on TensorRT's stream. ``inputs`` and ``outputs`` are addresses of device memory."""
            before, after = ([tuple(tensor.dims) for tensor in given] for given in (input_desc, output_desc))
            chosen = float_types[float_type_of(self.node, [tensor.type for tensor in input_desc])]
            launcher = self.launcher or default_launcher()
            found = self._plan(chosen, *self._tensors(before, after, inputs, outputs), launcher.gpu, workspace)
            for kernel in found.kernels:
                launcher.launch(self.node.operator.folder, kernel, stream)
            return 0

        def _tensors(
            self,
            input_shapes: Sequence[tuple[int, ...]],
            output_shapes: Sequence[tuple[int, ...]],
            inputs: Sequence[int] = (),
            outputs: Sequence[int] = (),
        ) -> tuple[dict[str, TensorAt], dict[str, TensorAt]]:
            """Inputs and outputs by name. The addresses are 0 if they are not given."""
            named = (
                ([entry.name for entry in self.node.on_device], input_shapes, inputs),
                ([entry.name for entry in self.node.outputs], output_shapes, outputs),
            )
            before, after = (
                {
                    name: TensorAt(shape, address)
                    for name, shape, address in zip(names, shapes, addresses or [0] * len(names), strict=True)
                }
                for names, shapes, addresses in named
            )
            return before, after

        def _plan(
            self,
            float_type: str,
            inputs: Mapping[str, TensorAt],
            outputs: Mapping[str, TensorAt],
            gpu: Gpu,
            workspace: int = 0,
        ) -> Plan:
            node = self.node
            return plan(node.operator.name, float_type, inputs, outputs, node.attributes, gpu, workspace)

    class Creator(trt.IPluginCreatorV3One):  # type: ignore[misc, name-defined]
        def __init__(self, operator: Operator) -> None:
            super().__init__()
            self.operator = operator
            self.name = operator.name
            self.plugin_namespace = NAMESPACE
            self.plugin_version = VERSION
            numbers = [
                trt.PluginField(entry.name, np.array([], dtype), kind)
                for entry, dtype, kind in _attribute_kinds(trt, operator)
            ]
            text = trt.PluginField(TENSORS, np.array([], np.int8), trt.PluginFieldType.CHAR)
            self.field_names = trt.PluginFieldCollection([*numbers, text])

        @_guarded(None)
        def create_plugin(self, name: str, fields: Any, phase: Any) -> Any:
            given = {field.name: np.asarray(field.data) for field in fields}
            text = given.pop(TENSORS, np.array([], np.int8))
            names = {entry.name for entry in self.operator.attributes}
            there = {key: value.reshape(-1)[0] for key, value in given.items() if key in names and value.size}
            attributes = {key: float(value) for key, value in there.items()}
            return Plugin(Node.of(self.operator.name, text.tobytes().decode().rstrip("\0"), attributes))

    return Plugin, Creator


def _attribute_kinds(trt: Any, operator: Operator) -> list[tuple[Attribute, type[np.generic], Any]]:
    """The attributes, each with its types in numpy and in a plugin's fields."""
    kinds: dict[str, tuple[type[np.generic], Any]] = {
        "int": (np.int32, trt.PluginFieldType.INT32),
        "float": (np.float32, trt.PluginFieldType.FLOAT32),
    }
    return [(entry, *kinds[entry.type]) for entry in operator.attributes]
