"""One call of an operator on torch's tensors: its inputs, its bytes and FLOPs, and its counterparts in PyTorch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.ops._case import Case
from tightbeam.plugins.tensorrt.launcher import Launcher
from tightbeam.plugins.tensorrt.native import Kernel, Plan, TensorAt, plan
from tools.gpu._graph_times import Place

__all__ = ["FLOAT_NAMES", "Operator", "Peer", "Tensors", "Work", "as_case", "as_doubles", "copies"]

Tensors = dict[str, torch.Tensor]
Peer = Callable[[Tensors], Tensors]
"""A function from an operator's inputs to its outputs by name; a cache is written in place, as the operator does."""
FLOAT_NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


@dataclass(frozen=True)
class Work(ABC):
    """``B`` samples (NGramBlock: rows) of an operator in ``dtype`` on ``device``.

    ``predicted``: the share of the roofline that was expected before anything was measured, from and to, in percent.
    """

    B: int
    dtype: torch.dtype
    device: str
    predicted: tuple[int, int]

    operator: ClassVar[str]
    floats: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def label(self) -> str:
        """Sizes of the work, for a table."""

    @abstractmethod
    def inputs(self, seed: int, *, odd: bool = False) -> Tensors:
        """Inputs by their names in the operator's table. ``odd``: samples differ in length, else all are full."""

    @abstractmethod
    def outputs(self, inputs: Tensors) -> Tensors:
        """Memory for the outputs, filled with NaN or -1; a cache has its input's."""

    @abstractmethod
    def result(self, inputs: Tensors, outputs: Tensors) -> torch.Tensor:
        """The numbers that are compared, in float64. ``inputs``: after the call, with what it wrote in place."""

    @abstractmethod
    def peers(self) -> dict[str, Peer]:
        """The same in PyTorch. The first is the obvious way, which float64 inputs make exact."""

    @abstractmethod
    def bytes_moved(self, inputs: Tensors) -> int:
        """Bytes that any kernel must at least read and write."""

    @abstractmethod
    def flops(self, inputs: Tensors) -> int:
        """FLOPs of the matrix products, two for each term."""

    @property
    def attributes(self) -> dict[str, float]:
        return {}

    @property
    def dtype_name(self) -> str:
        return FLOAT_NAMES[self.dtype]

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

    def __init__(self, work: Work, place: Place, launcher: Launcher) -> None:
        self.work, self.place, self.launcher = work, place, launcher
        self.operator = OPERATORS[work.operator]
        self.workspace = torch.empty(0, dtype=torch.uint8, device=place.device)

    def __call__(self, inputs: Tensors, outputs: Tensors) -> tuple[Kernel, ...]:
        """Enqueue them on torch's stream; those that were started."""
        before, after = (
            {name: TensorAt(tuple(tensor.shape), tensor.data_ptr()) for name, tensor in tensors.items()}
            for tensors in (inputs, outputs)
        )
        planned = self._plan(before, after)
        if planned.workspace_bytes > len(self.workspace):
            self.workspace = torch.empty(planned.workspace_bytes, dtype=torch.uint8, device=self.place.device)
            planned = self._plan(before, after)
        for kernel in planned.kernels:
            self.launcher.launch(self.operator.folder, kernel, self.place.stream())
        return planned.kernels

    def _plan(self, before: dict[str, TensorAt], after: dict[str, TensorAt]) -> Plan:
        work, workspace = self.work, self.workspace.data_ptr()
        return plan(work.operator, work.dtype_name, before, after, work.attributes, self.launcher.gpu, workspace)


def copies(tensors: Tensors) -> Tensors:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def as_doubles(tensors: Tensors) -> Tensors:
    return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def as_case(work: Work, inputs: Tensors) -> Case:
    """Inputs for the operator's definition in numpy; floats as float32, which represents every shorter type."""
    arrays = {
        name: (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()
        for name, tensor in inputs.items()
    }
    return Case(work.label, arrays, work.attributes, work.floats)
