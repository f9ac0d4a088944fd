"""Guarded memory of a GPU, and a launcher of kernels, for `pytest -m gpu`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.operators.cuda_host import GuardedMemory
from tightbeam.plugins.library import cuda_library
from tightbeam.plugins.ops._case import Array
from tightbeam.plugins.tensorrt.compiler import CACHE
from tightbeam.plugins.tensorrt.distribution import gpu_capability
from tightbeam.plugins.tensorrt.launcher import CudaLauncher

__all__ = ["DeviceMemory", "cuda", "gpu_launcher", "provider_library"]


def cuda(name: str, *arguments: Any) -> Any:
    """Call a function of CUDA's runtime, and return its result, a tuple of several, or None."""
    from cuda.bindings import runtime

    code, *results = getattr(runtime, name)(*arguments)
    assert code == runtime.cudaError_t.cudaSuccess, f"{name}: {code.name}"
    return results[0] if len(results) == 1 else tuple(results) or None


class DeviceMemory(GuardedMemory):
    """A copy of an array on the GPU, with its guards."""

    def __init__(self, array: Array) -> None:
        super().__init__(array)
        self.host = self.buffer[self.inside.start - self.guard_bytes :]
        self.device = int(cuda("cudaMalloc", self.host.nbytes))
        self.address = self.device + self.guard_bytes
        self.copy("cudaMemcpyHostToDevice", self.device, self.host.ctypes.data)

    def copy(self, kind: str, to: int, from_: int) -> None:
        from cuda.bindings import runtime

        cuda("cudaMemcpy", to, from_, self.host.nbytes, getattr(runtime.cudaMemcpyKind, kind))

    def check(self, op: str, writable: bool) -> None:
        self.copy("cudaMemcpyDeviceToHost", self.host.ctypes.data, self.device)  # when the kernels have ended
        cuda("cudaFree", self.device)
        super().check(op, writable)


def provider_library() -> Path:
    """The CUDA library for ONNX Runtime's CUDA provider; the tests are skipped without a GPU or that provider."""
    import onnxruntime

    if gpu_capability() is None:
        pytest.skip("no GPU")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA provider: install onnxruntime-gpu in place of onnxruntime")
    found = cuda_library()
    assert found is not None, "the CUDA library was not built: make cuda"
    return found


@contextmanager
def gpu_launcher(cache: Path) -> Iterator[CudaLauncher]:
    """Kernels on the first GPU; the tests are skipped where there is none. Compiled ones are stored in the folder
    ``cache``, or in the one that the environment names."""
    if gpu_capability() is None:
        pytest.skip("no GPU")
    cuda("cudaSetDevice", 0)
    cuda("cudaFree", 0)  # the context, which a runtime has when it calls a kernel
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE, os.environ.get(CACHE) or str(cache))
        yield CudaLauncher()
