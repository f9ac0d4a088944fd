"""The kernels that an engine may start, found while it is built, without a GPU and for runs of any size.

TensorRT asks each plugin for the workspace of its largest shapes. The call is noted then, with its smallest and largest
shapes, and planned for many sizes between them and for GPUs of several sizes.
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
"""The splits of a source depend on them."""
STEPPED = ("B", "M", "N")
"""Letters whose sizes choose between kernels; of the others the smallest and the largest are enough."""
ADDRESS = 1 << 20

profiled_calls: set[ProfiledCall] = set()
"""Calls of the plugins of engines that were built since it was last cleared."""


class ProfiledTensor(NamedTuple):
    """A tensor of a call: its name, smallest and largest shape."""

    name: str
    least: tuple[int, ...]
    most: tuple[int, ...]


@dataclass(frozen=True)
class ProfiledCall:
    """A call of an operator in an engine.

    Attributes
    ----------
    operator, float_type
        Arguments of ``plan``.
    attributes
        Values by name.
    inputs, outputs
        The tensors that it has.
    """

    operator: str
    float_type: str
    attributes: tuple[tuple[str, float], ...]
    inputs: tuple[ProfiledTensor, ...]
    outputs: tuple[ProfiledTensor, ...]

    def shapes(self) -> Iterator[tuple[Shapes, Shapes]]:
        """Return shapes of inputs and outputs by name: the smallest, the largest, and many between them."""
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
    """Return sizes of a letter: both ends, and the powers of two between them where they choose between kernels."""
    powers = [1 << power for power in range(most.bit_length())] if letter in STEPPED else []
    return sorted({least, most, *(size for size in powers if least < size < most)})


def kernels_of(calls: Iterable[ProfiledCall], capability: str) -> list[tuple[str, str]]:
    """Return (folder, kernel) of all kernels that calls may start on a GPU.

    Parameters
    ----------
    calls
        The calls of an engine.
    capability
        Compute capability of the GPU.
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
                except TensorRTError:  # the smallest of one size with the largest of another, which no run has
                    continue
                found |= {(operator.folder, kernel.name) for kernel in planned.kernels}
    return sorted(found)


def _placed(operator: Operator, inputs: Shapes, outputs: Shapes) -> tuple[dict[str, TensorAt], dict[str, TensorAt]]:
    """Tensors at addresses as aligned as TensorRT's, which are never read."""
    before, after = (
        {name: TensorAt(shape, ADDRESS * (first + i)) for i, (name, shape) in enumerate(given.items())}
        for first, given in ((2, inputs), (2 + len(inputs), outputs))
    )
    updated = {entry.name: entry.updates for entry in operator.outputs if entry.updates in before}
    return before, after | {name: before[of] for name, of in updated.items() if of is not None and name in after}
