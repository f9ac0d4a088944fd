"""Uploads of a decoding's small inputs to a GPU: which of them, and how many columns, each step copies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.runtimes.device.cuda import CudaDevice, HostMemory, Memory, StagedArrays

__all__ = ["StepUploads"]

HISTORIES = ("history", "ancestry")
COLUMNS = 64
"""The least columns of a history to upload; then twice as many, and so on, each with a CUDA graph of its own."""
WORTH_A_COPY = 1 << 16
"""Bytes that must be saved before an array is copied by itself, by columns: about what a copy takes (an estimate)."""


class StepUploads:
    """Page-locked arrays in place of a decoding's small inputs, with their copies on the GPU.

    The first step uploads all. If ``history`` and ``ancestry`` are large, later steps upload only the columns in use.
    They upload no columns that no step reads: the history without n-grams to block and without a repetition penalty,
    and the ancestry of one beam, whose slot is always 0. The old content on the GPU is valid tokens and slots.

    Parameters
    ----------
    device : CudaDevice
    inputs : dict of str to array
        Buffers of all small inputs, which this class replaces. Compaction replaces them by views of their beginning.
    names : collection of str
        The small inputs that the graph reads on the GPU.
    memory : callable
        Takes a name and the bytes, and returns memory of the host and of the GPU.
    """

    def __init__(
        self,
        device: CudaDevice,
        inputs: dict[str, Array],
        names: Collection[str],
        memory: Callable[[str, int], tuple[HostMemory, Memory]],
    ) -> None:
        self._device, self._inputs, self._memory = device, inputs, memory
        wide = [name for name in names if name in HISTORIES and inputs[name].nbytes >= WORTH_A_COPY]
        self._wide = self._stage("histories", wide)
        self._banned = self._stage("banned", [name for name in names if name == "banned"])
        others = [name for name in names if name not in (*self._wide.arrays, *self._banned.arrays)]
        self._small = self._stage("small inputs", others)
        self._planned: dict[str, int] = dict.fromkeys(self._wide.arrays, 0)

    def _stage(self, block: str, names: Iterable[str]) -> StagedArrays:
        described: dict[str, tuple[npt.DTypeLike, Any]] = {
            name: (self._inputs[name].dtype, self._inputs[name].shape) for name in names
        }
        staged = StagedArrays(self._device, described, lambda nbytes: self._memory(block, nbytes))
        for name, array in staged.arrays.items():
            array[...] = self._inputs[name]
            self._inputs[name] = array
        return staged

    @property
    def staged(self) -> tuple[StagedArrays, ...]:
        return self._small, self._wide, self._banned

    def addresses(self) -> dict[str, int]:
        """Return the addresses on the GPU by input."""
        return {name: staged.address(name) for staged in self.staged for name in staged.arrays}

    def resize_banned(self, capacity: int) -> None:
        """Replace the buffer ``banned`` by one of another capacity, filled with -1."""
        self._inputs["banned"] = np.full((len(self._inputs["banned"]), capacity), -1, np.int64)
        self._banned = self._stage("banned", self._banned.arrays)

    def plan(self) -> dict[str, int]:
        """Return the columns of each large history that a step must upload. They never become fewer, so a captured step
        stays valid after a long sample has ended."""
        self._planned = {name: max(least, self._needed(name)) for name, least in self._planned.items()}
        return dict(self._planned)

    def _needed(self, name: str) -> int:
        inputs = self._inputs
        capacity = inputs[name].shape[-1]
        if name == "ancestry":
            read, used = inputs[name].shape[1] > 1, int(inputs["lengths"].max())
        else:
            read = bool(inputs["no_repeat_ngram_size"] or inputs["repetition_penalty"] != 1)
            used = int(inputs["history_lengths"].max())
        if not read:
            return 0
        columns = max(COLUMNS, 1 << (used - 1).bit_length())
        unused = self._wide.arrays[name].nbytes // capacity * (capacity - columns)
        return columns if unused >= WORTH_A_COPY else int(capacity)

    def enqueue(self, columns: dict[str, int] | None) -> None:
        """Enqueue the copies of a step, of ``plan``; None copies all."""
        self._small.upload()
        arrays = self._wide.arrays
        if columns is None or all(columns[name] == array.shape[-1] for name, array in arrays.items()):
            self._wide.upload()
        else:
            for name, count in columns.items():
                self._wide.upload_columns(name, count)
        self._banned.upload()
