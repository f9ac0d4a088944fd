"""A stand-in for ``cuda.bindings.runtime``, as far as `CudaDevice` uses it: over plain memory, and stricter than a GPU.

Whatever is enqueued runs as late as it may: when the stream is waited for, or memory is freed. Every copy is checked:
its direction, its ends, that the host's end is page-locked. New memory holds NaN. What is not allowed while a stream is
captured spoils that.
"""

from __future__ import annotations

import ctypes
import enum
import gc
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

Array = Any
ALIGNMENT = 256


class Code(enum.Enum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorIllegalAddress = 700
    cudaErrorStreamCaptureUnsupported = 900
    cudaErrorStreamCaptureInvalidated = 901


class Kind(enum.Enum):
    cudaMemcpyHostToDevice = "host to device"
    cudaMemcpyDeviceToHost = "device to host"
    cudaMemcpyDeviceToDevice = "within the device"


class NodeKind(enum.Enum):
    cudaGraphNodeTypeKernel = "execute"
    cudaGraphNodeTypeMemcpy = "a copy"
    cudaGraphNodeTypeMemset = "clear"
    cudaGraphNodeTypeHost = "host"
    cudaGraphNodeTypeEmpty = "empty"
    cudaGraphNodeTypeMemAlloc = "allocate"
    cudaGraphNodeTypeMemFree = "free"
    cudaGraphNodeTypeEventRecord = "record"
    cudaGraphNodeTypeWaitEvent = "wait"


@dataclass(frozen=True)
class Work:
    """One operation on a stream.

    ``kind``: that of a copy, "clear", or what runs. ``nbytes``: copied or cleared. ``source``, ``target``: of a copy.
    """

    kind: str
    nbytes: int
    run: Callable[[], None]
    source: int = 0
    target: int = 0


class CudaInMemory:
    """The stand-in for the module.

    ``done``: operations that ran so far, in order; ``launches``: of graphs. ``capacity``: bytes that may be allocated.
    """

    cudaError_t = Code
    cudaMemcpyKind = Kind
    cudaDeviceAttr = SimpleNamespace(
        cudaDevAttrComputeCapabilityMajor="major", cudaDevAttrComputeCapabilityMinor="minor"
    )
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal="thread")
    cudaGraphNodeType = NodeKind
    cudaMemoryType = SimpleNamespace(
        cudaMemoryTypeHost="host", cudaMemoryTypeUnregistered="unknown", cudaMemoryTypeDevice="device"
    )
    cudaStreamNonBlocking = 1
    cudaHostAllocDefault = 0
    STREAM = 4711

    def __init__(self, devices: int = 1) -> None:
        self.devices = devices
        self.device: dict[int, tuple[int, Any]] = {}
        self.host: dict[int, tuple[int, Any]] = {}
        self.graphs: dict[object, list[Work]] = {}
        self.streams: list[int] = []
        self.pending: list[Work] = []
        self.captured: list[Work] | None = None
        self.spoilt = False
        self.done: list[Work] = []
        self.draining = False
        self.freed_meanwhile: list[tuple[int, dict[int, tuple[int, Any]]]] = []
        self.launches = 0
        self.allocations = 0
        self.capacity = 1 << 40
        self.broken = False

    # ---- for tests

    def kinds(self) -> list[str]:
        return [work.kind for work in self.done]

    def array(self, address: int, shape: tuple[int, ...], dtype: Any, *, on_host: bool = False) -> Array:
        """Return the array at an address, which must be in one allocation."""
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.check(address, nbytes, self.host if on_host else self.device)
        return np.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype).reshape(shape)

    @staticmethod
    def check(address: int, nbytes: int, where: dict[int, tuple[int, Any]]) -> None:
        assert any(start <= address and address + nbytes <= start + size for start, (size, _) in where.items()), (
            f"{nbytes} bytes at {address} are not in memory that was allocated there"
        )

    def enqueue(self, stream: int, work: Work) -> None:
        assert stream == self.STREAM and stream in self.streams
        (self.pending if self.captured is None else self.captured).append(work)

    @property
    def leaks(self) -> list[Any]:
        return [*self.device, *self.host, *self.graphs, *self.streams]

    # ---- what CUDA does

    def cudaGetDeviceCount(self) -> tuple[Code, int]:
        return Code.cudaSuccess, self.devices

    def cudaGetDevice(self) -> tuple[Code, int]:
        return Code.cudaSuccess, 0

    def cudaGetDeviceProperties(self, device: int) -> tuple[Code, Any]:
        return Code.cudaSuccess, SimpleNamespace(name=b"Plain memory\0")

    def cudaDeviceGetAttribute(self, attr: str, device: int) -> tuple[Code, int]:
        return Code.cudaSuccess, {"major": 8, "minor": 9}[attr]

    def cudaGetErrorString(self, error: Code) -> tuple[Code, bytes]:
        return Code.cudaSuccess, error.name.encode()

    def cudaGetLastError(self) -> tuple[Code]:
        return (Code.cudaSuccess,)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Code, int]:
        self.streams.append(self.STREAM)
        return Code.cudaSuccess, self.STREAM

    def cudaStreamDestroy(self, stream: int) -> tuple[Code]:
        self._drain()
        self.streams.remove(stream)
        return (Code.cudaSuccess,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[Code]:
        if self.captured is not None:
            self.spoilt = True
            return (Code.cudaErrorStreamCaptureUnsupported,)
        self._drain()
        return (Code.cudaErrorIllegalAddress if self.broken else Code.cudaSuccess,)

    def cudaMalloc(self, size: int) -> tuple[Code, int | None]:
        return self._allocate(size, self.device)

    def cudaFree(self, devPtr: int) -> tuple[Code]:
        return self._free(devPtr, self.device)

    def cudaHostAlloc(self, size: int, flags: int) -> tuple[Code, int | None]:
        return self._allocate(size, self.host)

    def cudaFreeHost(self, ptr: int) -> tuple[Code]:
        return self._free(ptr, self.host)

    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: Kind, stream: int) -> tuple[Code]:
        assert count > 0
        self.check(dst, count, self.host if kind == Kind.cudaMemcpyDeviceToHost else self.device)
        self.check(src, count, self.host if kind == Kind.cudaMemcpyHostToDevice else self.device)
        assert dst + count <= src or src + count <= dst, "the two places overlap"
        self.enqueue(stream, Work(kind.value, count, lambda: self._copy(dst, src, count), src, dst))
        return (Code.cudaSuccess,)

    def cudaMemcpy2DAsync(
        self, dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: Kind, stream: int
    ) -> tuple[Code]:
        assert 0 < width <= min(dpitch, spitch) and height > 0
        self.check(
            dst, dpitch * (height - 1) + width, self.host if kind == Kind.cudaMemcpyDeviceToHost else self.device
        )
        self.check(
            src, spitch * (height - 1) + width, self.host if kind == Kind.cudaMemcpyHostToDevice else self.device
        )

        def copy() -> None:
            for row in range(height):
                self._copy(dst + row * dpitch, src + row * spitch, width)

        self.enqueue(stream, Work(kind.value, width * height, copy, src, dst))
        return (Code.cudaSuccess,)

    def cudaMemsetAsync(self, devPtr: int, value: int, count: int, stream: int) -> tuple[Code]:
        self.check(devPtr, count, self.device)
        self.enqueue(stream, Work("clear", count, lambda: self._clear(devPtr, value, count)))
        return (Code.cudaSuccess,)

    def cudaStreamBeginCapture(self, stream: int, mode: str) -> tuple[Code]:
        assert self.captured is None
        self.captured, self.spoilt = [], False
        return (Code.cudaSuccess,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[Code, object | None]:
        assert self.captured is not None
        graph = object()
        work, self.captured = self.captured, None
        if self.spoilt:
            return Code.cudaErrorStreamCaptureInvalidated, None
        self.graphs[graph] = work
        return Code.cudaSuccess, graph

    def cudaGraphGetNodes(self, graph: object, numNodes: int = 0) -> tuple[Code, list[Work], int]:
        work = self.graphs[graph]
        return Code.cudaSuccess, work[:numNodes], len(work)

    def cudaGraphNodeGetType(self, node: Work) -> tuple[Code, NodeKind]:
        copies = {kind.value for kind in Kind}
        return Code.cudaSuccess, NodeKind("a copy" if node.kind in copies else node.kind)

    def cudaGraphMemcpyNodeGetParams(self, node: Work) -> tuple[Code, Any]:
        source, target = (SimpleNamespace(ptr=address) for address in (node.source, node.target))
        return Code.cudaSuccess, SimpleNamespace(srcPtr=source, dstPtr=target)

    def cudaPointerGetAttributes(self, ptr: int) -> tuple[Code, Any]:
        kinds = self.cudaMemoryType
        for where, kind in ((self.device, kinds.cudaMemoryTypeDevice), (self.host, kinds.cudaMemoryTypeHost)):
            if any(start <= ptr < start + size for start, (size, _) in where.items()):
                return Code.cudaSuccess, SimpleNamespace(type=kind)
        return Code.cudaSuccess, SimpleNamespace(type=kinds.cudaMemoryTypeUnregistered)

    def cudaGraphInstantiate(self, graph: object, flags: int) -> tuple[Code, object]:
        executable = object()
        self.graphs[executable] = self.graphs[graph]
        return Code.cudaSuccess, executable

    def cudaGraphLaunch(self, graphExec: object, stream: int) -> tuple[Code]:
        self.launches += 1
        for work in self.graphs[graphExec]:
            self.enqueue(stream, work)
        return (Code.cudaSuccess,)

    def cudaGraphDestroy(self, graph: object) -> tuple[Code]:
        del self.graphs[graph]
        return (Code.cudaSuccess,)

    def cudaGraphExecDestroy(self, graphExec: object) -> tuple[Code]:
        del self.graphs[graphExec]
        return (Code.cudaSuccess,)

    def _allocate(self, size: int, where: dict[int, tuple[int, Any]]) -> tuple[Code, int | None]:
        assert size > 0
        if self.captured is not None:
            self.spoilt = True
            return Code.cudaErrorStreamCaptureUnsupported, None
        if sum(taken for taken, _ in where.values()) + size > self.capacity:
            return Code.cudaErrorMemoryAllocation, None
        block = ctypes.create_string_buffer(b"\xff" * (size + ALIGNMENT), size + ALIGNMENT)
        address = -(-ctypes.addressof(block) // ALIGNMENT) * ALIGNMENT
        where[address] = size, block
        self.allocations += 1
        return Code.cudaSuccess, address

    def _free(self, address: int, where: dict[int, tuple[int, Any]]) -> tuple[Code]:
        if self.captured is not None:
            self.spoilt = True
            return (Code.cudaErrorStreamCaptureUnsupported,)
        self.freed_meanwhile.append((address, where))  # once all that is enqueued has run
        self._drain()
        return (Code.cudaSuccess,)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        for address in (target, source):
            self.check(address, nbytes, {**self.device, **self.host})
        ctypes.memmove(target, source, nbytes)

    def _clear(self, target: int, value: int, nbytes: int) -> None:
        self.check(target, nbytes, self.device)
        ctypes.memset(target, value, nbytes)

    def _drain(self) -> None:
        if self.draining:
            return
        self.draining = True
        while self.pending:
            work = self.pending.pop(0)
            work.run()
            self.done.append(work)
        self.draining = False
        while self.freed_meanwhile:
            address, where = self.freed_meanwhile.pop()
            size, _ = where.pop(address)
            ctypes.memset(address, 0xFF, size)


def expect_nothing_left(cuda: CudaInMemory) -> None:
    gc.collect()
    assert cuda.leaks == []


def in_whole_batches(made: Any) -> Any:
    """The same runner in memory, whose samples run in whole batches, as those of a bundle whose caches grow do."""
    made.runtime.joining = lambda: None
    return made
