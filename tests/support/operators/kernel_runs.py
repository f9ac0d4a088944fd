"""One call of an operator's kernels, as its plan says, with memory of the host or of a GPU. Needs no runtime."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from support.operators.cases import outputs_of
from support.operators.cuda_host import FLOATS, GuardedMemory, HostLauncher
from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.tensorrt.launcher import Launcher
from tightbeam.plugins.tensorrt.native import Gpu, TensorAt, plan
from tightbeam.plugins.tensorrt.shapes import output_shapes

__all__ = [
    "GPU",
    "Call",
    "Ints",
    "Memory",
    "Tensors",
    "launch_kernels",
    "run_kernels",
    "run_on_host",
    "samples_of",
    "shapes_of",
    "types_of",
]

Tensors = Mapping[str, TensorAt]
GPU = Gpu(multiprocessors=16, shared_bytes=227 * 1024)
"""The GPU that plans on the host are made for, where a test names no other."""


class Memory(Protocol):
    """A copy of an array, between guards."""

    address: int

    def check(self, op: str, writable: bool) -> None:
        """Copy it back if it is ``writable``. Raises RuntimeError where guards or a read-only array changed."""
        ...


class Call(Protocol):
    """A function that starts the kernels of a call; tensors by name, ``workspace`` an address."""

    def __call__(
        self, name: str, case: Case, dtype: str, inputs: Tensors, outputs: Tensors, workspace: int, launcher: Launcher
    ) -> None: ...


class Ints:
    """Sizes as plain integers, in place of TensorRT's expressions."""

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
    """Shapes of the outputs by the operator."""
    operator = OPERATORS[name]
    given = {entry.gives: int(case.inputs[entry.name][0]) for entry in operator.inputs if entry.gives is not None}
    found = output_shapes(operator, {tensor: array.shape for tensor, array in case.inputs.items()}, given, Ints())
    return {tensor: tuple(found[tensor]) for tensor in outputs_of(name, case)}


def types_of(name: str, dtype: str) -> dict[str, str]:
    """Types of all tensors of an operator, by name."""
    operator = OPERATORS[name]
    return {
        entry.name: dtype if entry.type == "Float" else entry.type for entry in (*operator.inputs, *operator.outputs)
    }


def launch_kernels(
    name: str,
    case: Case,
    dtype: str,
    inputs: Tensors,
    outputs: Tensors,
    workspace: int,
    launcher: Launcher,
    *,
    scalars_on_host: bool = False,
) -> None:
    """Start the kernels of the plan, one after the other, on the default stream."""
    attributes, gpu = case.attributes, launcher.gpu
    found = plan(name, dtype, inputs, outputs, attributes, gpu, workspace, scalars_on_host=scalars_on_host)
    for kernel in found.kernels:
        launcher.launch(OPERATORS[name].folder, kernel, 0)


def run_kernels(
    name: str,
    case: Case,
    dtype: str,
    launcher: Launcher,
    memory: Callable[[Array], Memory],
    *,
    in_place: bool = False,
    without: Collection[str] = (),
    scalars_on_host: bool = False,
    call: Call = launch_kernels,
) -> dict[str, Array]:
    """Run an operator on a case.

    Parameters
    ----------
    memory: places an array where the kernels run, between guards.
    in_place: NGramBlock's output has its input's memory; caches always have.
    without: optional outputs that are not asked for.
    scalars_on_host: the kernels get scalar inputs by value, as from ONNX Runtime; else they read them, as from
        TensorRT.
    call: starts the kernels, here those of the plan.

    Returns
    -------
    Outputs by name, which hold NaN or -1 before the call.

    Raises
    ------
    RuntimeError: a kernel wrote outside its outputs; and all that ``call`` raises.
    """
    operator, types = OPERATORS[name], types_of(name, dtype)
    inputs = {
        entry.name: np.array(case.inputs[entry.name], dtype=FLOATS.get(types[entry.name]), order="C")
        for entry in operator.inputs
        if entry.name in case.inputs and entry.gives is None
    }
    shares = {entry.name: entry.updates for entry in operator.outputs if entry.updates is not None}
    if in_place and name == "NGramBlock":
        shares["blocked"] = "scores"
    outputs = {
        tensor: inputs[shares[tensor]] if tensor in shares else _poisoned(shape, types[tensor])
        for tensor, shape in shapes_of(name, case).items()
        if tensor not in without
    }
    placed = {id(array): memory(array) for array in (*inputs.values(), *outputs.values())}
    before, after = (_places(tensors, placed) for tensors in (inputs, outputs))
    if scalars_on_host:
        call = functools.partial(launch_kernels, scalars_on_host=True)
    attributes, gpu = case.attributes, launcher.gpu
    needed = plan(name, dtype, before, after, attributes, gpu, 0, scalars_on_host=scalars_on_host).workspace_bytes
    workspace = memory(np.full(needed, 0xFF, np.uint8))
    call(name, case, dtype, before, after, workspace.address, launcher)
    written = {id(array) for array in outputs.values()}
    for key, place in placed.items():
        place.check(name, key in written)
    workspace.check(f"{name}'s workspace", True)
    return outputs


def run_on_host(
    name: str,
    case: Case,
    dtype: str,
    *,
    gpu: Gpu = GPU,
    order: int = 0,
    in_place: bool = False,
    without: Collection[str] = (),
    scalars_on_host: bool = False,
) -> dict[str, Array]:
    """``run_kernels`` on the host shim, planned for ``gpu``, in one of ``cuda_host.ORDERS``."""
    return run_kernels(
        name,
        case,
        dtype,
        HostLauncher(gpu, order),
        GuardedMemory,
        in_place=in_place,
        without=without,
        scalars_on_host=scalars_on_host,
    )


def samples_of(
    name: str, case: Case, found: Mapping[str, Array], samples: Iterable[int]
) -> tuple[Case, dict[str, Array]]:
    """The call and its outputs for some samples alone (NGramBlock: rows), since a definition is slow."""
    operator = OPERATORS[name]
    wanted = list(samples)
    B = len(case.inputs["lengths" if "lengths" in case.inputs else "mask"])
    first = {entry.name: entry.shape.split(",")[0].strip() for entry in (*operator.inputs, *operator.outputs)}

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
