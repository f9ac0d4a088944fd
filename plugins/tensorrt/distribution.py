"""The installed distribution of TensorRT, ``tensorrt`` or else ``tensorrt_rtx``, and all that differs between them."""

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
"""The capability of the GPU of this machine."""
TURING = "75"
HOPPER = "; an H100 or H200 (90) needs plain tensorrt, on a machine that has one"
INSTALL = "pip install 'tightbeam[tensorrt]'"
log = logging.getLogger(__name__)


def in_order(capabilities: Sequence[str]) -> list[str]:
    """Sort compute capabilities, the smallest first; "8.0", "sm_80" and "sm80" become "80"."""
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
        Name of the distribution, ``tensorrt`` or ``tensorrt_rtx``.
    errors
        The last errors that TensorRT logged, a line each.
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
        """Compute capabilities that an engine can be built for on any machine: "80", "120"."""
        if not self.is_rtx:
            return ()
        members = getattr(self.trt.ComputeCapability, "__members__", {})
        return tuple(sorted((name[2:] for name in members if name.startswith("SM")), key=int))

    def resolve_capabilities(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """Check the capabilities to build an engine for.

        Parameters
        ----------
        wanted
            Compute capabilities, or "current" for the GPU of this machine.

        Returns
        -------
        tuple of str
            The capabilities, with the GPU's own in place of "current".

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
                    else f"TensorRT {self.version} builds for the GPU of this machine alone"
                )
                raise TensorRTError(
                    f"compute capability {capability!r} cannot be built for: {reason}; pass one of "
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
        """Raise TensorRTError for a precision in which a GPU cannot multiply."""
        if self.is_rtx and TURING in capabilities and precision != "fp16":
            raise TensorRTError(
                f"compute capability {TURING} has no products in {precision} in TensorRT-RTX; take --precision fp16, "
                f"or leave {TURING} out"
            )

    @property
    def types(self) -> dict[str, Any]:
        """TensorRT's types of numbers, by their names in numpy."""
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
        """Logger that passes TensorRT's messages to Python's logging, a line each, and errors to ``errors`` as well."""
        return _logger(self)

    def network(self, builder: Any) -> Any:
        """A new network whose types are those of the graph."""
        flags = getattr(self.trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        return builder.create_network(0 if flags is None else 1 << int(flags))

    def configure(self, builder: Any, capabilities: Sequence[str]) -> Any:
        """A builder's configuration: targets, float32 that is float32, outputs of plugins in the memory of their
        inputs, and memory that is there before anything runs, which CUDA graphs need."""
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
        """An execution context whose kernels stay the same, so that a CUDA graph of them does; None where TensorRT
        cannot make one."""
        if not self.is_rtx:
            return engine.create_execution_context()
        config = engine.create_runtime_config()
        config.dynamic_shapes_kernel_specialization_strategy = (
            self.trt.DynamicShapesKernelSpecializationStrategy.NONE  # others change them while it runs
        )
        return engine.create_execution_context(config)

    def can_be_captured(self, context: Any, stream: int) -> bool:
        """Return True where a CUDA graph can capture the work that ``context`` enqueues."""
        return bool(context.is_stream_capturable(stream)) if self.is_rtx else True


@functools.cache
def _logger(found: TensorRT) -> Any:
    """The one logger of the process, as TensorRT requires."""
    trt = found.trt
    levels = {
        trt.ILogger.Severity.INTERNAL_ERROR: logging.ERROR,
        trt.ILogger.Severity.ERROR: logging.INFO,  # the caller raises an error with it
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
    """Import the installed TensorRT, ``tensorrt`` before ``tensorrt_rtx``.

    Raises
    ------
    TensorRTError
        There is none, or it cannot be loaded.
    """
    failures = []
    for distribution, module in (("tensorrt", "tensorrt"), ("tensorrt_rtx", "tensorrt_rtx_bindings")):
        try:
            if distribution == "tensorrt_rtx":
                importlib.import_module("tensorrt_rtx_libs")
            trt = importlib.import_module(module)
            if not hasattr(trt, "Builder"):  # a folder that is called so, or a package without its library
                raise ImportError(f"{module} has no Builder")
        except Exception as error:  # packages without their libraries raise all kinds
            failures.append(f"{distribution}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            continue
        found = TensorRT(trt, distribution)
        if found.is_rtx:
            _provide_library_name()
        return found
    raise TensorRTError(f"there is no TensorRT here ({'; '.join(failures)}); {INSTALL}, or install tensorrt")


def _provide_library_name() -> None:
    """Let TensorRT-RTX's parser find its own library: else the process is aborted at the first plugin."""
    path = rtx_name_library()
    if path is None:
        raise TensorRTError(
            "libtensorrt_rtx_name.so is missing, without which TensorRT-RTX aborts the process at the first plugin: it "
            "was not compiled. Install a C++ compiler (GCC 12 or newer, or Clang) and then tightbeam again"
        )
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


MAJOR, MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""


def gpu_capability() -> str | None:
    """Compute capability of the first GPU, such as "90"; None where there is no driver or no GPU.

    The driver is asked directly, since TensorRT may abort where there is none.
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
