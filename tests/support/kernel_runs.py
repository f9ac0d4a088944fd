"""One call of an operator's kernels, as its plan says, with memory of the host or of a GPU. Needs no runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from support.cuda_host import FLOATS
from support.operator_cases import outputs_of
from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.tensorrt.launcher import Launcher
from tightbeam.plugins.tensorrt.native import TensorAt, plan, tables

__all__ = ["Call", "Ints", "Memory", "Tensors", "launch_kernels", "run_kernels", "samples_of", "shapes_of", "types_of"]

Tensors = Mapping[str, TensorAt]


class Memory(Protocol):
    """A copy of an array, between guards."""

    address: int

    def check(self, op: str, writable: bool) -> None:
        """Copy it back if it is ``writable``. Raises RuntimeError where what may not be written was."""
        ...


class Call(Protocol):
    """Starts the kernels of a call; tensors by name, the last address that of the workspace."""

    def __call__(
        self, name: str, case: Case, dtype: str, inputs: Tensors, outputs: Tensors, workspace: int, launcher: Launcher
    ) -> None: ...


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


def launch_kernels(
    name: str, case: Case, dtype: str, inputs: Tensors, outputs: Tensors, workspace: int, launcher: Launcher
) -> None:
    """Those of the plan, one after the other, on the default stream."""
    found = plan(name, dtype, inputs, outputs, case.attributes, launcher.gpu, workspace)
    for kernel in found.kernels:
        launcher.launch(tables()[name].folder, kernel, 0)


def run_kernels(
    name: str,
    case: Case,
    dtype: str,
    launcher: Launcher,
    memory: Callable[[Array], Memory],
    *,
    in_place: bool = False,
    call: Call = launch_kernels,
) -> dict[str, Array]:
    """Outputs by name, which hold NaN or -1 before. ``in_place``: an output has its input's memory where it may.

    Caches always have. Raises RuntimeError for writes where none should be, and what ``call`` raises.
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
    needed = plan(name, dtype, before, after, case.attributes, launcher.gpu, 0).workspace_bytes
    workspace = memory(np.full(needed, 0xFF, np.uint8))
    call(name, case, dtype, before, after, workspace.address, launcher)
    written = {id(array) for array in outputs.values()}
    for key, place in placed.items():
        place.check(name, key in written)
    workspace.check(f"{name}'s workspace", True)
    return outputs


def samples_of(
    name: str, case: Case, found: Mapping[str, Array], samples: Iterable[int]
) -> tuple[Case, dict[str, Array]]:
    """The same call, and what it gave, for some samples alone: a definition takes its time for each.

    NGramBlock knows no samples: its rows.
    """
    table = tables()[name]
    wanted = list(samples)
    B = len(case.inputs["lengths" if "lengths" in case.inputs else "mask"])
    first = {entry.name: entry.shape.split(",")[0].strip() for entry in (*table.inputs, *table.outputs)}

    def rows_of(tensor: str, array: Array) -> Array:
        if first[tensor] in ("B", "R"):
            return array[wanted]
        if first[tensor] == "B M":
            M, rest = len(array) // B, array.shape[1:]
            return array.reshape(B, M, *rest)[wanted].reshape(len(wanted) * M, *rest)
        return array

    some = replace(case, inputs={tensor: rows_of(tensor, array) for tensor, array in case.inputs.items()})
    return some, {tensor: rows_of(tensor, array) for tensor, array in found.items()}


def _places(tensors: Mapping[str, Array], placed: Mapping[int, Memory]) -> dict[str, TensorAt]:
    return {tensor: TensorAt(array.shape, placed[id(array)].address) for tensor, array in tensors.items()}


def _poisoned(shape: tuple[int, ...], kind: str) -> Array:
    dtype = FLOATS.get(kind) or np.dtype(kind)
    return np.full(shape, -1 if dtype.kind == "i" else np.nan, dtype=dtype)
