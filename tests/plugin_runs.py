"""One call of a TensorRT plugin, as TensorRT makes it, with memory of the host or of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from cuda_host import FLOATS
from operator_runs import outputs_of
from tightbeam.plugins.case import Array, Case
from tightbeam.plugins.tensorrt.flavour import load_tensorrt
from tightbeam.plugins.tensorrt.native import TensorAt, plan, tables
from tightbeam.plugins.tensorrt.plugin import faults, make_plugin
from tightbeam.plugins.tensorrt.starter import Starter

__all__ = ["Ints", "described", "described_range", "node_of", "plugin_of", "run_plugin", "shapes_of", "types_of"]


class Memory(Protocol):
    """A copy of an array, between guards."""

    address: int

    def check(self, op: str, writable: bool) -> None:
        """Copy it back if it is ``writable``. Raises RuntimeError where what may not be written was."""
        ...


class Ints:
    """Sizes that are numbers."""

    def constant(self, value: int) -> int:
        return value

    def add(self, a: int, b: int) -> int:
        return a + b

    def subtract(self, a: int, b: int) -> int:
        return a - b

    def multiply(self, a: int, b: int) -> int:
        return a * b

    def divide(self, a: int, b: int) -> int:
        return a // b


def node_of(name: str, case: Case) -> str:
    """The names of the tensors, as a node has them."""
    return f"{' '.join(case.inputs)} -> {' '.join(outputs_of(name, case))}"


def plugin_of(name: str, case: Case, starter: Starter | None = None) -> Any:
    return make_plugin(name, node_of(name, case), case.attributes, starter)


def shapes_of(name: str, case: Case) -> dict[str, tuple[int, ...]]:
    """Of the outputs, by the table."""
    table = tables()[name]
    given = {entry.gives: int(case.inputs[entry.name][0]) for entry in table.inputs if entry.gives is not None}
    found = table.output_shapes({tensor: array.shape for tensor, array in case.inputs.items()}, given, Ints())
    return {tensor: tuple(found[tensor]) for tensor in outputs_of(name, case)}


def types_of(name: str, dtype: str) -> dict[str, str]:
    """Of all tensors of an operator."""
    table = tables()[name]
    return {entry.name: dtype if entry.type == "Float" else entry.type for entry in (*table.inputs, *table.outputs)}


def described(shape: Iterable[int], kind: str) -> Any:
    """A tensor as TensorRT describes it."""
    trt = load_tensorrt().trt
    names = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16"}
    description = trt.PluginTensorDesc()
    description.dims = trt.Dims(list(shape))
    description.type = getattr(trt.DataType, names.get(kind, kind.upper()))
    description.format = trt.TensorFormat.LINEAR
    return description


def described_range(shape: Iterable[int], kind: str) -> Any:
    """A tensor as TensorRT describes it while an engine is built, ``shape`` the largest."""
    description = load_tensorrt().trt.DynamicPluginTensorDesc()
    description.desc = described(shape, kind)
    description.max = description.desc.dims
    return description


def run_plugin(
    name: str, case: Case, dtype: str, starter: Starter, memory: Callable[[Array], Memory], *, in_place: bool = False
) -> dict[str, Array]:
    """Outputs by name, which hold NaN or -1 before. ``in_place``: an output has its input's memory where it may.

    Caches always have. Raises RuntimeError for what the plugin noted, and for writes where none should be.
    """
    table, types = tables()[name], types_of(name, dtype)
    inputs = {
        entry.name: np.array(case.inputs[entry.name], dtype=FLOATS.get(types[entry.name]), order="C")
        for entry in table.inputs
        if entry.name in case.inputs and entry.gives is None
    }
    shares = {entry.name: entry.updates for entry in table.outputs if entry.updates is not None}
    if in_place and name == "NGramBlock":
        shares["blocked"] = "scores"
    outputs = {
        tensor: inputs[shares[tensor]] if tensor in shares else _poisoned(shape, types[tensor])
        for tensor, shape in shapes_of(name, case).items()
    }
    placed = {id(array): memory(array) for array in (*inputs.values(), *outputs.values())}
    before, after = (_places(tensors, placed) for tensors in (inputs, outputs))
    needed = plan(name, dtype, before, after, case.attributes, starter.gpu, 0).workspace_bytes
    workspace = memory(np.full(needed, 0xFF, np.uint8))

    faults.clear()
    code = plugin_of(name, case, starter).enqueue(
        *([described(at.shape, types[tensor]) for tensor, at in tensors.items()] for tensors in (before, after)),
        *([at.address for at in tensors.values()] for tensors in (before, after)),
        workspace.address,
        0,
    )
    written = {id(array) for array in outputs.values()}
    for key, place in placed.items():
        place.check(name, key in written)
    workspace.check(f"{name}'s workspace", True)
    if code != 0 or faults:
        raise RuntimeError(f"{name} returned {code}: {faults}")
    return outputs


def _places(tensors: Mapping[str, Array], placed: Mapping[int, Memory]) -> dict[str, TensorAt]:
    return {tensor: TensorAt(array.shape, placed[id(array)].address) for tensor, array in tensors.items()}


def _poisoned(shape: tuple[int, ...], kind: str) -> Array:
    dtype = FLOATS.get(kind) or np.dtype(kind)
    return np.full(shape, -1 if dtype.kind == "i" else np.nan, dtype=dtype)
