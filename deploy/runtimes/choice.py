"""Choice of a runtime by the arguments of `Runner.load`."""

from __future__ import annotations

from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.bundle.verified import VerifiedFiles
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.runtimes.base import Runtime
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu

__all__ = ["check_choice", "load_runtime"]

TENSORRT = "tensorrt"
ENGINE_KINDS = ("onnxruntime", TENSORRT)
CUDA = "cuda"
DEVICES = ("cpu", CUDA)
MAX_THREADS = 1024
"""Upper bound on threads: ONNX Runtime starts as many as it is asked for, and hangs on a hundred thousand."""


def check_choice(engine: str, device: str, threads: int | None) -> None:
    """Raise InputError for arguments of `Runner.load` that are unknown, or do not go together."""
    kind = engine.partition(":")[0] if isinstance(engine, str) else ""
    if kind not in ENGINE_KINDS or (kind != TENSORRT and engine != kind) or engine == f"{TENSORRT}:":
        raise InputError(f"engine={engine!r} is not known; pass onnxruntime, tensorrt, or tensorrt:NAME")
    if device not in DEVICES:
        raise InputError(f"device={device!r} is not supported; pass one of {', '.join(DEVICES)}")
    if threads is not None and (kind == TENSORRT or device == CUDA):
        what = f"engine={engine!r}" if kind == TENSORRT else f"device={device!r}"
        raise InputError(f"threads={threads!r} does nothing with {what}; leave threads out")
    if threads is not None and not (type(threads) is int and 1 <= threads <= MAX_THREADS):
        raise InputError(
            f"threads={threads!r} is not a number of threads; pass 1 to {MAX_THREADS}, or None for all cores"
        )


def load_runtime(
    bundle: Bundle, engine: str, device: str, threads: int | None, *, verify: bool | VerifiedFiles
) -> Runtime:
    """Load a bundle's graphs into the chosen runtime. Raises BundleError if they cannot be loaded.

    The weights are compared with their SHA-256 first, except for `OnnxRuntimeCpu`, which waits for that itself.
    """
    kind, _, name = engine.partition(":")
    if (kind, device) != ("onnxruntime", "cpu"):
        bundle.wait_for_weights()
    if kind == TENSORRT:
        from tightbeam.deploy.runtimes.tensorrt import load_tensorrt_runtime

        return load_tensorrt_runtime(bundle, name or None, verify=verify)
    if device == CUDA:
        from tightbeam.deploy.runtimes.onnxruntime_cuda import load_onnxruntime_cuda

        return load_onnxruntime_cuda(bundle)
    return OnnxRuntimeCpu(bundle, threads)
