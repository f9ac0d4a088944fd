"""A GPU: memory, copies on one stream, and CUDA graphs."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.errors import DeviceError, RuntimeSetupError
from tightbeam.deploy.runtimes.base import lay_out
from tightbeam.plugins.tensorrt.distribution import gpu_capability

__all__ = ["ALIGNMENT", "CudaDevice", "CudaGraph", "HostMemory", "Memory", "StagedArrays", "open_device"]

ALIGNMENT = 256
"""Bytes; TensorRT requires it of every address."""
RUN_ON_CPU = "run on the CPU: --engine onnxruntime --device cpu"


def open_device() -> CudaDevice:
    """Open the first GPU of this process (CUDA_VISIBLE_DEVICES). Raises DeviceError without one, RuntimeSetupError
    without the package cuda-bindings."""
    if gpu_capability() is None:
        raise DeviceError(f"this machine has no NVIDIA GPU, or no driver for it; {RUN_ON_CPU}")
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        missing = f"cuda.bindings, which reaches the GPU, is missing ({error})"
        raise RuntimeSetupError(f"{missing}; pip install cuda-bindings") from error
    return CudaDevice(runtime)


class Memory:
    """Memory of the GPU, or page-locked memory of the host. It is freed with the last reference to this object."""

    def __init__(self, address: int, nbytes: int, free: Callable[[], None]) -> None:
        self.address = address
        self.nbytes = nbytes
        weakref.finalize(self, free)


class HostMemory(Memory):
    """Page-locked memory with numpy's array interface: arrays over it hold a reference to it."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "data": (self.address, False), "shape": (self.nbytes,), "typestr": "|u1"}

    def array(self, shape: Sequence[int], dtype: npt.DTypeLike, start: int = 0) -> Array:
        """Return an array over the bytes from ``start`` on."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        return np.asarray(self)[start : start + nbytes].view(dtype).reshape(shape)


class CudaGraph:
    """An executable CUDA graph. It is destroyed with the last reference to this object."""

    def __init__(self, launch: Callable[[], None], destroy: Callable[[], None]) -> None:
        self.launch = launch
        weakref.finalize(self, destroy)


class _ReleaseQueue:
    """Releases of CUDA objects: immediate, but deferred while a stream is captured, which a release would invalidate.
    Python may finalize objects at any time."""

    def __init__(self) -> None:
        self.capturing = False
        self._waiting: list[Callable[[], Any]] = []

    def release(self, function: Callable[[Any], Any], handle: Any) -> None:
        self._waiting.append(partial(function, handle))
        if not self.capturing:
            self.flush()

    def flush(self) -> None:
        while self._waiting:
            self._waiting.pop()()


class CudaDevice:
    """A GPU with one stream, on which everything is enqueued. Every method raises DeviceError if CUDA fails.

    Parameters
    ----------
    runtime : module
        ``cuda.bindings.runtime``.

    Raises
    ------
    DeviceError
        There is no GPU.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._releases = _ReleaseQueue()
        code, count = runtime.cudaGetDeviceCount()
        if code != runtime.cudaError_t.cudaSuccess or not count:
            reason = self._say(code) if count is None else "it counts 0"
            raise DeviceError(f"CUDA finds no GPU on this machine ({reason}); {RUN_ON_CPU}")
        index = self._run(runtime.cudaGetDevice)
        attribute = runtime.cudaDeviceAttr
        major, minor = (
            self._run(runtime.cudaDeviceGetAttribute, wanted, index)
            for wanted in (attribute.cudaDevAttrComputeCapabilityMajor, attribute.cudaDevAttrComputeCapabilityMinor)
        )
        self.capability = f"{major}{minor}"
        self.name: str = self._run(runtime.cudaGetDeviceProperties, index).name.decode(errors="replace").rstrip("\0")
        stream = self._run(runtime.cudaStreamCreateWithFlags, runtime.cudaStreamNonBlocking)
        weakref.finalize(self, runtime.cudaStreamDestroy, stream)
        self._stream = stream
        self.stream = int(stream)

    def allocate(self, nbytes: int) -> Memory:
        """Allocate uninitialized memory on the GPU, aligned; 0 bytes have an address too."""
        address = int(self._run(self._runtime.cudaMalloc, max(nbytes, 1)))
        return Memory(address, nbytes, partial(self._releases.release, self._runtime.cudaFree, address))

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Allocate uninitialized page-locked memory of the host, aligned; 0 bytes have an address too."""
        address = int(self._run(self._runtime.cudaHostAlloc, max(nbytes, 1), self._runtime.cudaHostAllocDefault))
        return HostMemory(address, nbytes, partial(self._releases.release, self._runtime.cudaFreeHost, address))

    def upload(self, target: int, source: int, nbytes: int) -> None:
        """Copy from page-locked memory to the GPU. The caller holds both until ``synchronize``."""
        self._copy(target, source, nbytes, self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice)

    def upload_columns(self, target: int, source: int, rows: int, pitch: int, width: int) -> None:
        """Copy the first ``width`` bytes of each of ``rows`` rows, which begin ``pitch`` bytes apart on both sides."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        if rows and width:
            self._run(self._runtime.cudaMemcpy2DAsync, target, pitch, source, pitch, width, rows, kind, self._stream)

    def download(self, target: int, source: int, nbytes: int) -> None:
        """Copy from the GPU to page-locked memory. The caller holds both until ``synchronize``."""
        self._copy(target, source, nbytes, self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost)

    def move(self, target: int, source: int, nbytes: int) -> None:
        """Copy within the GPU, between ranges that do not overlap."""
        self._copy(target, source, nbytes, self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice)

    def move_rows(self, target: int, target_pitch: int, source: int, source_pitch: int, rows: int, width: int) -> None:
        """Copy the first ``width`` bytes of each of ``rows`` rows within the GPU; rows begin ``pitch`` bytes apart."""
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        if rows and width:
            copy = self._runtime.cudaMemcpy2DAsync
            self._run(copy, target, target_pitch, source, source_pitch, width, rows, kind, self._stream)

    def clear(self, target: int, nbytes: int) -> None:
        """Fill with zeros."""
        if nbytes:
            self._run(self._runtime.cudaMemsetAsync, target, 0, nbytes, self._stream)

    def synchronize(self) -> None:
        """Wait for all enqueued work, and raise its failures."""
        self._run(self._runtime.cudaStreamSynchronize, self._stream)

    def capture(self, enqueue: Callable[[], None], *staged: StagedArrays) -> CudaGraph:
        """Capture the work that ``enqueue`` enqueues as a CUDA graph, without running it.

        Raises DeviceError also for work that cannot be repeated: host functions, and copies from or to host memory
        outside of ``staged``, which may be freed before the graph is launched.
        """
        runtime = self._runtime
        graph = self._record(enqueue)
        try:
            self._check_nodes(graph, [staged.on_host for staged in staged])
            executable = self._run(runtime.cudaGraphInstantiate, graph, 0)
        finally:
            runtime.cudaGraphDestroy(graph)
        return CudaGraph(
            partial(self._run, runtime.cudaGraphLaunch, executable, self._stream),
            partial(self._releases.release, runtime.cudaGraphExecDestroy, executable),
        )

    def _record(self, enqueue: Callable[[], None]) -> Any:
        runtime = self._runtime
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._run(runtime.cudaStreamBeginCapture, self._stream, mode)
        self._releases.capturing = True
        try:
            enqueue()
        except BaseException:
            code, graph = runtime.cudaStreamEndCapture(self._stream)
            if code == runtime.cudaError_t.cudaSuccess and graph is not None:
                runtime.cudaGraphDestroy(graph)
            runtime.cudaGetLastError()
            raise
        else:
            return self._run(runtime.cudaStreamEndCapture, self._stream)
        finally:
            self._releases.capturing = False
            self._releases.flush()

    def _check_nodes(self, graph: Any, places: Sequence[range]) -> None:
        runtime = self._runtime
        kinds = runtime.cudaGraphNodeType
        repeatable = (
            *(kinds.cudaGraphNodeTypeKernel, kinds.cudaGraphNodeTypeMemset, kinds.cudaGraphNodeTypeEmpty),
            *(kinds.cudaGraphNodeTypeMemAlloc, kinds.cudaGraphNodeTypeMemFree),
            *(kinds.cudaGraphNodeTypeEventRecord, kinds.cudaGraphNodeTypeWaitEvent),
        )
        _, count = self._call(runtime.cudaGraphGetNodes, graph)
        nodes, _ = self._call(runtime.cudaGraphGetNodes, graph, count)
        for node in nodes[:count]:
            kind = self._run(runtime.cudaGraphNodeGetType, node)
            if kind in repeatable:
                continue
            if kind != kinds.cudaGraphNodeTypeMemcpy:
                raise DeviceError(f"the captured step holds a node of the kind {kind.name}, which may not be repeated")
            copy = self._run(runtime.cudaGraphMemcpyNodeGetParams, node)
            for address in (int(copy.srcPtr.ptr), int(copy.dstPtr.ptr)):
                if self._is_of_host(address) and not any(address in place for place in places):
                    raise DeviceError(
                        "the captured step copies from or to memory of the host that is not the step's own"
                    )

    def _is_of_host(self, address: int) -> bool:
        kinds = self._runtime.cudaMemoryType
        attributes = self._run(self._runtime.cudaPointerGetAttributes, address)
        return attributes.type in (kinds.cudaMemoryTypeHost, kinds.cudaMemoryTypeUnregistered)

    def _copy(self, target: int, source: int, nbytes: int, kind: Any) -> None:
        if nbytes:
            self._run(self._runtime.cudaMemcpyAsync, target, source, nbytes, kind, self._stream)

    def _run(self, function: Any, *arguments: Any) -> Any:
        """Call a CUDA function, and return its only result, or None."""
        results = self._call(function, *arguments)
        return results[0] if results else None

    def _call(self, function: Any, *arguments: Any) -> list[Any]:
        results: list[Any]
        code, *results = function(*arguments)
        error = self._runtime.cudaError_t
        if code != error.cudaSuccess:
            self._runtime.cudaGetLastError()  # else the next caller of CUDA would get this error
            if code == error.cudaErrorMemoryAllocation:
                name = function.__name__
                wanted = f" for {arguments[0]} bytes" if name in ("cudaMalloc", "cudaHostAlloc") else f" ({name})"
                where = "of the host, page-locked," if name == "cudaHostAlloc" else "on the GPU"
                raise DeviceError(f"no memory {where}{wanted}; run fewer rows together")
            raise DeviceError(f"CUDA: {function.__name__} failed ({self._say(code)}); {RUN_ON_CPU} to compare")
        return results

    def _say(self, code: Any) -> str:
        _, text = self._runtime.cudaGetErrorString(code)
        return str(text.decode(errors="replace"))


class StagedArrays:
    """Page-locked host arrays, zero at first, each with a copy on the GPU. All are in one block, moved by one copy.

    Parameters
    ----------
    device : CudaDevice
    described : mapping of str to (dtype, shape)
    memory : callable, optional
        Takes the bytes, and returns memory of the host and of the GPU; by default both are allocated.
    """

    def __init__(
        self,
        device: CudaDevice,
        described: Mapping[str, tuple[npt.DTypeLike, Sequence[int]]],
        memory: Callable[[int], tuple[HostMemory, Memory]] | None = None,
    ) -> None:
        self._device = device
        nbytes = {name: math.prod(shape) * np.dtype(dtype).itemsize for name, (dtype, shape) in described.items()}
        self._starts, self._nbytes = lay_out(nbytes, ALIGNMENT)
        if memory is None:
            host, self._memory = device.allocate_host(self._nbytes), device.allocate(self._nbytes)
        else:
            host, self._memory = memory(self._nbytes)
        self._host = host.address
        host.array((self._nbytes,), np.uint8)[:] = 0
        self.arrays: dict[str, Array] = {
            name: host.array(shape, dtype, self._starts[name]) for name, (dtype, shape) in described.items()
        }

    def address(self, name: str) -> int:
        """Return the address of an array's copy on the GPU."""
        return self._memory.address + self._starts[name]

    @property
    def on_host(self) -> range:
        """Addresses of the host arrays."""
        return range(self._host, self._host + max(self._nbytes, 1))

    def upload(self) -> None:
        self._device.upload(self._memory.address, self._host, self._nbytes)

    def upload_columns(self, name: str, columns: int) -> None:
        """Upload the first ``columns`` numbers of each row of one array."""
        array = self.arrays[name]
        pitch = array.shape[-1] * array.itemsize
        rows = math.prod(array.shape[:-1])
        source = self._host + self._starts[name]
        self._device.upload_columns(self.address(name), source, rows, pitch, columns * array.itemsize)

    def download(self, name: str, nbytes: int) -> None:
        """Download the first bytes of one array."""
        self._device.download(self._host + self._starts[name], self.address(name), nbytes)
