"""Section "build" of gpu_check.py: the native libraries, that for CUDA too, compiled for the GPU at hand and installed
into this Python's environment.

Without a network name ONNX Runtime's headers: CMAKE_ARGS=-DONNXRUNTIME_INCLUDE_DIR=/path/to/include
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from tools.gpu._results import Results

ROOT = Path(__file__).resolve().parents[2]
FOUND = (
    "from tightbeam.plugins.library import cpu_library, cuda_library, tensorrt_library\n"
    "print(*(path() or '-' for path in (cpu_library, cuda_library, tensorrt_library)), sep='\\n')"
)
LIBRARIES = ("cpu", "cuda", "tensorrt")


def main(
    output: Annotated[Path, typer.Option(help="File for the results.")],
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Without a GPU: list the installed libraries.")] = False,
) -> None:
    results = Results(output)
    if not rehearse:
        _install(results)
    found = subprocess.run([sys.executable, "-c", FOUND], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    paths = dict(zip(LIBRARIES, found.stdout.split("\n"), strict=False))
    for name, path in paths.items():
        size = f"{Path(path).stat().st_size:,}" if path != "-" else "-"
        results.row("Native libraries", ("library", "bytes"), (f"libtightbeam_{name}.so", size))
    missing = [name for name, path in paths.items() if path == "-" and not (rehearse and name == "cuda")]
    if missing:
        raise SystemExit(f"error: {', '.join(missing)} was not built; see the log above")


def _install(results: Results) -> None:
    """Install as `make cuda` does, for this GPU alone, without warnings as errors; without build isolation if
    scikit-build-core is installed, which needs no network.
    """
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("error: torch finds no GPU here, for which to compile; expected one")
    major, minor = torch.cuda.get_device_capability()
    architecture = f"{major}{minor}-real"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "-v", "-e", str(ROOT)]
    if importlib.util.find_spec("scikit_build_core"):
        command += ["--no-build-isolation", "--no-index"]
    for name, value in (("CUDA", "ON"), ("CUDA_ARCHITECTURES", architecture)):
        command += ["--config-settings", f"cmake.define.TIGHTBEAM_{name}={value}"]
    start = time.monotonic()
    subprocess.run(command, check=True)
    results.figure("architecture", architecture)
    results.figure("build_s", round(time.monotonic() - start, 1))


if __name__ == "__main__":
    typer.run(main)
