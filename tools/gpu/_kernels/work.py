"""One call of an operator on torch's tensors: its inputs, its bytes and FLOPs, and its counterparts in PyTorch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.ops._case import Case
from tightbeam.plugins.tensorrt.native import Kernel, Plan, TensorAt, plan
from tools.gpu._place import Host

__all__ = ["Operator", "Peer", "Tensors", "Work", "as_case", "as_doubles"]

Tensors = dict[str, torch.Tensor]
Peer = Callable[[Tensors], Tensors]
"""A function from an operator's inputs to its outputs by name; a cache is written in place, as the operator does."""


@dataclass(frozen=True)
class Work(ABC):
    """``B`` samples (NGramBlock: rows) of an operator in ``dtype`` on ``device``.

    ``floats``: names of the inputs in ``dtype``. ``attributes``: of the operator. ``label``: sizes, for a table.
    """

    B: int
    dtype: torch.dtype
    device: str

    operator: ClassVar[str]
    floats: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def label(self) -> str: ...

    @property
    def attributes(self) -> dict[str, float]:
        return {}

    @abstractmethod
    def inputs(self, seed: int, *, odd: bool = False) -> Tensors:
        """Inputs by their names in the operator's table. ``odd``: samples differ in length, else all are full."""

    @abstractmethod
    def outputs(self, inputs: Tensors) -> Tensors:
        """Memory for the outputs, filled with NaN or -1; a cache has its input's."""

    def result(self, inputs: Tensors, outputs: Tensors) -> torch.Tensor:
        """The numbers that are compared, in float64. ``inputs``: after the call, with what it wrote in place."""
        return next(iter(outputs.values())).double()

    @abstractmethod
    def peers(self) -> dict[str, Peer]:
        """The same in PyTorch. The first is the obvious way, which float64 inputs make exact."""

    @abstractmethod
    def bytes_moved(self, inputs: Tensors) -> int:
        """Bytes that any kernel must at least read and write."""

    def flops(self, inputs: Tensors) -> int:
        """FLOPs of the matrix products, two for each term."""
        return 0

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)

    def numbers(self, generator: torch.Generator, *shape: int) -> torch.Tensor:
        """Random ones of standard deviation 1."""
        return torch.randn(*shape, generator=generator, dtype=self.dtype, device=self.device)

    def unset(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        kind = dtype or self.dtype
        return torch.full(shape, float("nan") if kind.is_floating_point else -1, dtype=kind, device=self.device)


class Operator:
    """The kernels of one operator for tensors of one shape, launched by their plan."""

    def __init__(self, work: Work, place: Host, launcher: Any) -> None:
        self.work, self.place, self.launcher = work, place, launcher
        self.folder = OPERATORS[work.operator].folder
        self.workspace = torch.empty(0, dtype=torch.uint8, device=place.device)

    def __call__(self, inputs: Tensors, outputs: Tensors) -> tuple[Kernel, ...]:
        """Enqueue them on torch's stream; those that were started."""
        planned = self._plan(inputs, outputs)
        if planned.workspace_bytes > len(self.workspace):
            self.workspace = torch.empty(planned.workspace_bytes, dtype=torch.uint8, device=self.place.device)
            planned = self._plan(inputs, outputs)
        for kernel in planned.kernels:
            self.launcher.launch(self.folder, kernel, self.place.stream())
        return planned.kernels

    def _plan(self, *tensors: Tensors) -> Plan:
        before, after = (
            {name: TensorAt(tuple(tensor.shape), tensor.data_ptr()) for name, tensor in each.items()}
            for each in tensors
        )
        work, workspace = self.work, self.workspace.data_ptr()
        return plan(work.operator, work.dtype_name, before, after, work.attributes, self.launcher.gpu, workspace)


def as_doubles(tensors: Tensors) -> Tensors:
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def as_case(work: Work, inputs: Tensors) -> Case:
    """Inputs for the operator's definition in numpy; floats as float32, which represents every shorter type."""
    arrays = {
        name: (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
        for name, tensor in inputs.items()
    }
    return Case(work.label, arrays, work.attributes, work.floats)
