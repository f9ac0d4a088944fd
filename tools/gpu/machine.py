"""Section "machine" of gpu_check.py: the GPU, its driver, and the versions of everything that runs on it."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from tools.gpu._results import Results, skip

QUERY = {
    "gpu": "name",
    "driver": "driver_version",
    "compute capability": "compute_cap",
    "memory": "memory.total",
    "clock (maximum)": "clocks.max.sm",
}
PACKAGES = (
    *("tightbeam", "torch", "transformers", "onnx", "onnxruntime", "onnxruntime-gpu", "numpy", "cuda-bindings"),
    *("nvidia-cuda-nvrtc", "tensorrt", "tensorrt_rtx_cu13_bindings"),
)
ROOT = Path(__file__).resolve().parents[2]


def main(
    output: Annotated[Path, typer.Option(help="File for the results.")],
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Run without a GPU.")] = False,
) -> None:
    results = Results(output)
    results.figure("commit", _output_of("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD") or "unknown")
    results.figure("python", platform.python_version())
    for package in PACKAGES:
        try:
            results.figure(package, version(package))
        except PackageNotFoundError:
            continue
    nvcc = _output_of("nvcc", "--version")
    results.figure("nvcc", nvcc.rpartition("release ")[2].partition(",")[0] if nvcc else "none")
    results.figure("compute-sanitizer", "there" if shutil.which("compute-sanitizer") else "none")
    found = _output_of("nvidia-smi", f"--query-gpu={','.join(QUERY.values())}", "--format=csv,noheader", "--id=0")
    if not found:
        if not rehearse:
            skip("this machine has no NVIDIA GPU, or no driver for it (nvidia-smi)")
        results.note("a rehearsal: no GPU was used, and times mean nothing")
        return
    for name, value in zip(QUERY, found.splitlines()[0].split(", "), strict=True):
        results.figure(name, value)


def _output_of(*command: str) -> str | None:
    """Output of a command; None if it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


if __name__ == "__main__":
    typer.run(main)
