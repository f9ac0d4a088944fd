"""Section "machine" of gpu_check.py: the GPU, its driver, and the versions of everything that runs on it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from tools.gpu._process import ROOT, Found
from tools.gpu._report import MACHINE

QUERY = {
    "GPU": "name",
    "driver": "driver_version",
    "compute capability": "compute_cap",
    "memory": "memory.total",
    "clock (maximum)": "clocks.max.sm",
}
PACKAGES = (
    *("tightbeam", "torch", "transformers", "onnx", "onnxruntime", "onnxruntime-gpu", "numpy", "cuda-bindings"),
    *("nvidia-cuda-nvrtc", "tensorrt", "tensorrt_rtx_cu13_bindings"),
)


def run(folder: str, rehearse: bool, seconds: float) -> Iterator[Found]:
    """Yield what the head of the report names."""
    found = {"commit": _output_of("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD") or "unknown"}
    found["python"] = platform.python_version()
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    found["nvcc"] = _output_of("nvcc", "--version").rpartition("release ")[2].partition(",")[0] or "none"
    found["compute-sanitizer"] = "there" if shutil.which("compute-sanitizer") else "none"
    gpu = _output_of("nvidia-smi", f"--query-gpu={','.join(QUERY.values())}", "--format=csv,noheader", "--id=0")
    found |= zip(QUERY, gpu.partition("\n")[0].split(", "), strict=True) if gpu else ()
    yield MACHINE, found
    if not gpu and not rehearse:
        raise SystemExit("skipped: this machine has no NVIDIA GPU, or no driver for it (nvidia-smi)")


def _output_of(*command: str) -> str:
    """Output of a command; empty if it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
