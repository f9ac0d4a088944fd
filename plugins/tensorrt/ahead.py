"""The kernels that an engine may launch in runs of any size, found without a GPU when the engine is built.

TensorRT asks each plugin for the workspace of its largest shapes. The plugin then records the call, with its smallest
and largest shapes, and the call is planned for many sizes between them and for GPUs of several sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.schema import Operator
from tightbeam.plugins.tensorrt.errors import TensorRTError
from tightbeam.plugins.tensorrt.native import Gpu, TensorAt, plan
from tightbeam.plugins.tensorrt.shapes import letters_of, shape_of

__all__ = ["ProfiledCall", "ProfiledTensor", "kernels_of", "profiled_calls"]

Shapes = dict[str, tuple[int, ...]]
KB = 1024
SHARED_BYTES = {"75": 64 * KB, "80": 163 * KB, "87": 163 * KB, "90": 227 * KB, "100": 227 * KB, "103": 227 * KB}
"""Shared memory that a block may have, by compute capability (CUDA programming guide, technical specifications)."""
OTHER_SHARED_BYTES = 99 * KB
MULTIPROCESSORS = (16, 64, 160)
"""Numbers of multiprocessors to plan for: a source is split by them."""
STEPPED = ("B", "M", "N")
"""Letters whose sizes decide which kernel runs. Of other letters, the smallest and the largest size are enough."""
ADDRESS = 1 << 20

profiled_calls: set[ProfiledCall] = set()
"""Calls of plugins in the engines that were built since this set was last cleared."""


class ProfiledTensor(NamedTuple):
    """A tensor of a call: its name, its smallest and its largest shape."""

    name: str
    least: tuple[int, ...]
    most: tuple[int, ...]


@dataclass(frozen=True)
class ProfiledCall:
    """A call of an operator in an engine.

    Attributes
    ----------
    operator, float_type
        Name of the operator, and one of ``FLOAT_TYPES``.
    attributes
        Pairs of name and value.
    inputs, outputs
        The tensors that the node has.
    """

    operator: str
    float_type: str
    attributes: tuple[tuple[str, float], ...]
    inputs: tuple[ProfiledTensor, ...]
    outputs: tuple[ProfiledTensor, ...]

    def shapes(self) -> Iterator[tuple[Shapes, Shapes]]:
        """List the smallest shapes of the call, the largest, and many between them.

        Yields
        ------
        tuple of dict
            Shapes of the inputs and of the outputs, by name.
        """
        operator, tensors = OPERATORS[self.operator], (*self.inputs, *self.outputs)
        least = {tensor.name: tensor.least for tensor in tensors}
        most = {tensor.name: tensor.most for tensor in tensors}
        fewest, largest = letters_of(operator, least), letters_of(operator, most)
        values = {letter: _between(letter, fewest.get(letter, size), size) for letter, size in largest.items()}
        between = (
            {
                entry.name: shape_of(entry, dict(zip(values, sizes, strict=True)))
                for entries in (operator.inputs, operator.outputs)
                for entry in entries
                if entry.name in least
            }
            for sizes in itertools.product(*values.values())
        )
        for shapes in itertools.chain((least, most), between):
            yield (
                {tensor.name: shapes[tensor.name] for tensor in self.inputs},
                {tensor.name: shapes[tensor.name] for tensor in self.outputs},
            )


def _between(letter: str, least: int, most: int) -> list[int]:
    """Sizes of a letter to plan for: both ends, and the powers of two between them if the size decides the kernel."""
    powers = [1 << power for power in range(most.bit_length())] if letter in STEPPED else []
    return sorted({least, most, *(size for size in powers if least < size < most)})


def kernels_of(calls: Iterable[ProfiledCall], capability: str) -> list[tuple[str, str]]:
    """Find all kernels that the calls of an engine may launch on a kind of GPU.

    Parameters
    ----------
    calls
        The calls of the engine.
    capability
        Compute capability of the GPU, such as "80".

    Returns
    -------
    list of tuple
        Folder of the operator and name of the kernel, sorted.
    """
    shared = SHARED_BYTES.get(capability, OTHER_SHARED_BYTES)
    gpus = [Gpu(multiprocessors, shared, int(capability)) for multiprocessors in MULTIPROCESSORS]
    found: set[tuple[str, str]] = set()
    for call in calls:
        operator = OPERATORS[call.operator]
        for shapes in call.shapes():
            inputs, outputs = _placed(operator, *shapes)
            for gpu in gpus:
                try:
                    planned = plan(call.operator, call.float_type, inputs, outputs, dict(call.attributes), gpu, ADDRESS)
                except TensorRTError:  # sizes that contradict one another, so no run has them
                    continue
                found |= {(operator.folder, kernel.name) for kernel in planned.kernels}
    return sorted(found)


def _placed(operator: Operator, inputs: Shapes, outputs: Shapes) -> tuple[dict[str, TensorAt], dict[str, TensorAt]]:
    """Place tensors at addresses that are aligned like TensorRT's and are never read."""
    before, after = (
        {name: TensorAt(shape, ADDRESS * (first + i)) for i, (name, shape) in enumerate(given.items())}
        for first, given in ((2, inputs), (2 + len(inputs), outputs))
    )
    updated = {entry.name: entry.updates for entry in operator.outputs if entry.updates in before}
    return before, after | {name: before[of] for name, of in updated.items() if of is not None and name in after}
