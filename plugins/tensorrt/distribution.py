"""The installed distribution of TensorRT, ``tensorrt`` or ``tensorrt_rtx``, and the differences between the two."""

from __future__ import annotations

import ctypes
import functools
import importlib
import logging
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tightbeam.plugins.library import rtx_name_library
from tightbeam.plugins.tensorrt.errors import TensorRTError

__all__ = ["CURRENT", "INSTALL", "TensorRT", "gpu_capability", "in_order", "load_tensorrt"]

CURRENT = "current"
"""Stands for the compute capability of this machine's GPU."""
TURING = "75"
HOPPER = "; an H100 or H200 (90) needs the package tensorrt, on a machine with that GPU"
INSTALL = "pip install 'tightbeam[tensorrt]'"
log = logging.getLogger(__name__)


def in_order(capabilities: Sequence[str]) -> list[str]:
    """Sort compute capabilities.

    Parameters
    ----------
    capabilities
        Such as "80", "8.0", "sm_80" or "sm80", which all mean the same.

    Returns
    -------
    list of str
        In the form "80", the smallest first.
    """
    names = [re.sub(r"^(?:sm_?)?(\d+)\.?(\d)$", r"\1\2", name.strip().lower()) for name in capabilities]
    return sorted(names, key=lambda name: (len(name), name))


@dataclass(frozen=True)
class TensorRT:
    """A distribution of TensorRT.

    Attributes
    ----------
    trt
        The Python module.
    distribution
        ``tensorrt`` or ``tensorrt_rtx``.
    errors
        The last errors that TensorRT logged, each in one line.
    """

    trt: Any
    distribution: str
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=16), compare=False)

    @property
    def version(self) -> str:
        return str(self.trt.__version__)

    @property
    def is_rtx(self) -> bool:
        return self.distribution == "tensorrt_rtx"

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Compute capabilities for which an engine can be built on any machine, such as "80" and "120"."""
        if not self.is_rtx:
            return ()
        members = getattr(self.trt.ComputeCapability, "__members__", {})
        return tuple(sorted((name[2:] for name in members if name.startswith("SM")), key=int))

    def resolve_capabilities(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """Check the compute capabilities for which an engine is to be built.

        Parameters
        ----------
        wanted
            Compute capabilities, or "current" for the GPU of this machine.

        Returns
        -------
        tuple of str
            The capabilities. The GPU's own takes the place of "current".

        Raises
        ------
        TensorRTError
            An engine for one of them cannot be built here.
        """
        if not wanted or len(set(wanted)) != len(wanted):
            raise TensorRTError(
                f"compute capabilities {', '.join(wanted) or 'none'}: expected different ones, such as 80"
            )
        buildable = (*self.capabilities, CURRENT)
        if not self.is_rtx and (here := gpu_capability()) is not None:
            buildable = (here, CURRENT)
        for capability in wanted:
            if capability not in buildable:
                reason = (
                    f"TensorRT-RTX {self.version} has {', '.join(self.capabilities)}"
                    if self.is_rtx
                    else f"TensorRT {self.version} builds only for the GPU of this machine"
                )
                raise TensorRTError(
                    f"no engine can be built for compute capability {capability!r}: {reason}; pass one of "
                    f"{', '.join(buildable)}{HOPPER if self.is_rtx and capability == '90' else ''}"
                )
        if CURRENT in wanted and len(wanted) > 1:
            raise TensorRTError(
                "the capability 'current' cannot be combined with others; pass it alone, or name each one"
            )
        if CURRENT not in wanted:
            return tuple(wanted)
        found = gpu_capability()
        if found is None:
            names = f"; name a capability: {', '.join(self.capabilities)}" if self.capabilities else ""
            raise TensorRTError(f"the capability 'current' needs a GPU, and this machine has none{names}")
        if self.is_rtx and found not in self.capabilities:
            raise TensorRTError(
                f"the GPU of this machine has compute capability {found}, and TensorRT-RTX {self.version} has "
                f"{', '.join(self.capabilities)}{HOPPER}"
            )
        return (found,)

    def check_precision(self, capabilities: Sequence[str], precision: str) -> None:
        """Check that GPUs can multiply in a precision.

        Parameters
        ----------
        capabilities
            Compute capabilities of the GPUs.
        precision
            The precision of the bundle, such as "fp16".

        Raises
        ------
        TensorRTError
            TensorRT has no products in this precision for one of the GPUs.
        """
        if self.is_rtx and TURING in capabilities and precision != "fp16":
            raise TensorRTError(
                f"compute capability {TURING} has no products in {precision} in TensorRT-RTX; take --precision fp16, "
                f"or leave {TURING} out"
            )

    @property
    def types(self) -> dict[str, Any]:
        """TensorRT's data types, by their names in numpy."""
        kinds = self.trt.DataType
        return {
            "float32": kinds.FLOAT,
            "float16": kinds.HALF,
            "bfloat16": kinds.BF16,
            "int32": kinds.INT32,
            "int64": kinds.INT64,
            "bool": kinds.BOOL,
        }

    @property
    def logger(self) -> Any:
        """Logger that sends TensorRT's messages to Python's logging, each in one line, and errors to ``errors`` too."""
        return _logger(self)

    def network(self, builder: Any) -> Any:
        """Create a network that keeps the data types of the graph."""
        flags = getattr(self.trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        return builder.create_network(0 if flags is None else 1 << int(flags))

    def configure(self, builder: Any, capabilities: Sequence[str]) -> Any:
        """Create a builder's configuration for GPUs of some compute capabilities.

        Products of float32 are not rounded to TF32. Plugins may write outputs into the memory of their inputs. Memory
        is allocated before a run, as CUDA graphs need.
        """
        config = builder.create_builder_config()
        config.clear_flag(self.trt.BuilderFlag.TF32)
        config.set_preview_feature(self.trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03, True)
        if self.is_rtx:
            config.set_flag(self.trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
            config.num_compute_capabilities = len(capabilities)
            for index, capability in enumerate(capabilities):
                name = "CURRENT" if capability == CURRENT else f"SM{capability}"
                config.set_compute_capability(getattr(self.trt.ComputeCapability, name), index)
        return config

    def create_context(self, engine: Any) -> Any:
        """Create an execution context whose kernels never change, so that a CUDA graph of them stays valid.

        Return None if TensorRT cannot create it.
        """
        if not self.is_rtx:
            return engine.create_execution_context()
        config = engine.create_runtime_config()
        config.dynamic_shapes_kernel_specialization_strategy = (
            self.trt.DynamicShapesKernelSpecializationStrategy.NONE  # other strategies replace kernels during runs
        )
        return engine.create_execution_context(config)

    def can_be_captured(self, context: Any, stream: int) -> bool:
        """Return True if a CUDA graph can capture the work that ``context`` enqueues."""
        return bool(context.is_stream_capturable(stream)) if self.is_rtx else True


@functools.cache
def _logger(found: TensorRT) -> Any:
    """The logger, of which TensorRT requires a single one in a process."""
    trt = found.trt
    levels = {
        trt.ILogger.Severity.INTERNAL_ERROR: logging.ERROR,
        trt.ILogger.Severity.ERROR: logging.INFO,  # the caller raises an exception with it
        trt.ILogger.Severity.WARNING: logging.INFO,
    }

    class Logger(trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR):
                found.errors.append(" ".join(message.split()))
            log.log(levels.get(severity, logging.DEBUG), "%s", " ".join(message.split()))

    return Logger()


@functools.cache
def load_tensorrt() -> TensorRT:
    """Import the installed TensorRT: ``tensorrt``, else ``tensorrt_rtx``.

    Returns
    -------
    TensorRT
        The distribution that was found.

    Raises
    ------
    TensorRTError
        Neither is installed, or neither can be loaded.
    """
    failures = []
    for distribution, module in (("tensorrt", "tensorrt"), ("tensorrt_rtx", "tensorrt_rtx_bindings")):
        try:
            if distribution == "tensorrt_rtx":
                importlib.import_module("tensorrt_rtx_libs")
            trt = importlib.import_module(module)
            if not hasattr(trt, "Builder"):  # a folder of that name, or a package without its library
                raise ImportError(f"{module} has no Builder")
        except Exception as error:  # packages without their libraries raise exceptions of all kinds
            failures.append(f"{distribution}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            continue
        found = TensorRT(trt, distribution)
        if found.is_rtx:
            _provide_library_name()
        return found
    raise TensorRTError(f"TensorRT cannot be loaded ({'; '.join(failures)}); {INSTALL}, or install tensorrt")


def _provide_library_name() -> None:
    """Let TensorRT-RTX's parser find its own library. Otherwise it aborts the process at the first plugin."""
    path = rtx_name_library()
    if path is None:
        raise TensorRTError(
            "libtensorrt_rtx_name.so was not compiled, and TensorRT-RTX aborts the process without it. "
            "Install a C++ compiler (GCC 12 or newer, or Clang) and then tightbeam again"
        )
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


MAJOR, MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""


def gpu_capability() -> str | None:
    """Ask the driver for the compute capability of the first GPU.

    TensorRT is not asked, since it may abort the process if there is no GPU.

    Returns
    -------
    str or None
        Such as "90"; None without a driver or a GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    for value, attribute in ((major, MAJOR), (minor, MINOR)):
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
    return f"{major.value}{minor.value}"
