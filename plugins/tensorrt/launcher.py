"""The launcher of a plan's kernels on a GPU: NVRTC compiles each kernel, and it is loaded once."""

from __future__ import annotations

import functools
from typing import Any, Protocol

from tightbeam.plugins.tensorrt.compiler import CompiledKernel, compile_kernel
from tightbeam.plugins.tensorrt.distribution import INSTALL, gpu_capability
from tightbeam.plugins.tensorrt.errors import TensorRTError
from tightbeam.plugins.tensorrt.native import Gpu, Kernel

__all__ = ["CudaLauncher", "Launcher", "default_launcher"]

FREE_SHARED_BYTES = 48 * 1024
"""Shared memory that a block may use without an attribute of the kernel."""


class Launcher(Protocol):
    """A device that runs kernels."""

    @property
    def gpu(self) -> Gpu:
        """The GPU to plan for."""
        ...

    def launch(self, folder: str, kernel: Kernel, stream: int) -> None:
        """Enqueue a kernel.

        Parameters
        ----------
        folder
            Folder of the operator below ``plugins/ops``.
        kernel
            The kernel, as the current plan of this thread has it.
        stream
            Address of the CUDA stream.

        Raises
        ------
        TensorRTError
            The kernel cannot be compiled, loaded or launched.
        """
        ...


@functools.cache
def default_launcher() -> Launcher:
    """Create the launcher on the current GPU, once in a process. Raises TensorRTError if there is no GPU."""
    return CudaLauncher()


class CudaLauncher:
    """Launcher on the current GPU.

    Raises
    ------
    TensorRTError
        ``cuda.bindings``, a GPU or its driver is missing.
    """

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise TensorRTError(f"the kernels cannot be launched without cuda.bindings ({error}); {INSTALL}") from error
        self._driver = driver
        if gpu_capability() is None:  # without a driver, the bindings raise exceptions of their own
            raise TensorRTError("the kernels need a GPU, and this machine has no GPU or no driver for it")
        self._run(driver.cuInit, 0)
        device = self._run(driver.cuCtxGetDevice)
        attribute = driver.CUdevice_attribute
        value = functools.partial(self._attribute, device)
        major = value(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = value(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        self.gpu = Gpu(
            value(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            value(attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            10 * major + minor,
        )
        self.capability = str(self.gpu.capability)
        self._functions: dict[str, Any] = {}
        self._shared_bytes: dict[str, int] = {}  # by kernel, for kernels that were allowed more than FREE_SHARED_BYTES

    def launch(self, folder: str, kernel: Kernel, stream: int) -> None:
        function = self._function(folder, kernel.name)
        if kernel.shared_bytes > self._shared_bytes.get(kernel.name, FREE_SHARED_BYTES):
            attribute = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._run(self._driver.cuFuncSetAttribute, function, attribute, kernel.shared_bytes)
            self._shared_bytes[kernel.name] = kernel.shared_bytes
        launch = (*kernel.grid, kernel.block, 1, 1, kernel.shared_bytes, stream, kernel.parameters, 0)
        self._run(self._driver.cuLaunchKernel, function, *launch)

    def _function(self, folder: str, name: str) -> Any:
        if name not in self._functions:
            try:
                found = self._load(compile_kernel(folder, name, self.capability))
            except TensorRTError:  # an engine's kernel, compiled by a later CUDA than the driver supports
                found = self._load(compile_kernel(folder, name, self.capability, anew=True))
            self._functions[name] = found
        return self._functions[name]

    def _load(self, compiled: CompiledKernel) -> Any:
        module = self._run(self._driver.cuModuleLoadData, compiled.cubin)
        return self._run(self._driver.cuModuleGetFunction, module, compiled.symbol.encode())

    def _attribute(self, device: Any, attribute: Any) -> int:
        return int(self._run(self._driver.cuDeviceGetAttribute, attribute, device))

    def _run(self, function: Any, *arguments: Any) -> Any:
        code, *results = function(*arguments)
        if code != self._driver.CUresult.CUDA_SUCCESS:
            raise TensorRTError(f"CUDA: {function.__name__} failed with {code.name}")
        return results[0] if results else None
