"""A pool of memory: a finished batch returns its blocks for the next batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.runtimes.device.cuda import HostMemory, Memory

__all__ = ["BatchMemory", "MemoryPool"]


class MemoryPool:
    """Blocks by name. If all tensors of a batch fit into the blocks of earlier batches, nothing is allocated.

    The blocks never take more than the largest batch needed. If a batch needs larger blocks for some names while other
    blocks are larger than it needs, so that their sum would exceed that bound, all blocks are freed first.

    Parameters
    ----------
    allocate : callable
        Takes a name and the bytes, and returns a new block.
    """

    def __init__(self, allocate: Callable[[str, int], Memory]) -> None:
        self._allocate = allocate
        self._most = 0
        self.blocks: dict[str, Memory] = {}
        """The blocks that no batch uses."""

    def take(self, wanted: Mapping[str, int]) -> dict[str, Memory]:
        """Return a block of at least the wanted bytes for each name. Blocks that are too small are freed first."""
        pooled = {name: self.blocks.pop(name) for name in wanted if name in self.blocks}
        self._most = max(self._most, sum(wanted.values()))
        if sum(max(nbytes, _size(pooled, name)) for name, nbytes in wanted.items()) > self._most:
            pooled.clear()
        taken = {name: pooled.pop(name) for name, nbytes in wanted.items() if _size(pooled, name) >= nbytes}
        pooled.clear()
        for name in wanted.keys() - taken.keys():
            taken[name] = self._allocate(name, wanted[name])
        return taken


def _size(blocks: Mapping[str, Memory], name: str) -> int:
    return blocks[name].nbytes if name in blocks else -1


class BatchMemory:
    """The blocks of one batch, on the GPU and page-locked. They are freed with it, unless it returns them.

    Parameters
    ----------
    on_device, on_host : MemoryPool
    wanted : mapping of str to int
        Bytes on the GPU by name. They are taken together, so that blocks of other sizes are freed first.
    """

    def __init__(self, on_device: MemoryPool, on_host: MemoryPool, wanted: Mapping[str, int]) -> None:
        self.wanted = wanted
        self._pools = on_device, on_host
        self.on_device = on_device.take(wanted)
        self._on_host: dict[str, Memory] = {}

    def host_array(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
        """Return a page-locked array with the previous content of its block."""
        return self._host(name, math.prod(shape) * np.dtype(dtype).itemsize).array(shape, dtype)

    def pair(self, name: str, nbytes: int) -> tuple[HostMemory, Memory]:
        """Return memory of the host and of the GPU: the batch's pair of this name if it is large enough, else a new
        one."""
        return self._host(name, nbytes), _grown(self.on_device, self._pools[0], name, nbytes)

    def _host(self, name: str, nbytes: int) -> HostMemory:
        memory = _grown(self._on_host, self._pools[1], name, nbytes)
        assert isinstance(memory, HostMemory)
        return memory

    def put_back(self) -> None:
        """Return the blocks to the pool. The next batch reads this batch's numbers under a mask, so they must be
        finite."""
        for pool, blocks in zip(self._pools, (self.on_device, self._on_host), strict=True):
            pool.blocks |= blocks


def _grown(blocks: dict[str, Memory], pool: MemoryPool, name: str, nbytes: int) -> Memory:
    """Return the block of a name, from the pool if it is missing or too small."""
    if _size(blocks, name) < nbytes:
        blocks.pop(name, None)
        blocks |= pool.take({name: nbytes})
    return blocks[name]
