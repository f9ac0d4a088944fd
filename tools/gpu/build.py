"""Section "build" of gpu_check.py: the native libraries, that for CUDA too, compiled for the GPU at hand and installed
into this Python's environment.

Without a network name ONNX Runtime's headers: CMAKE_ARGS=-DONNXRUNTIME_INCLUDE_DIR=/path/to/include
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.gpu._process import ROOT, Found

FOUND = (
    "from tightbeam.plugins.library import cpu_library, cuda_library, tensorrt_library\n"
    "print(*(path() or '-' for path in (cpu_library, cuda_library, tensorrt_library)), sep='\\n')"
)
LIBRARIES = ("cpu", "cuda", "tensorrt")


def run(folder: str, rehearse: bool, seconds: float) -> Iterator[Found]:
    """Build, unless it is a rehearsal, and list the installed libraries."""
    if not rehearse:
        subprocess.run(_install(), check=True)
    found = subprocess.run([sys.executable, "-c", FOUND], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    paths = dict(zip(LIBRARIES, found.stdout.split("\n"), strict=False))
    for name, path in paths.items():
        size = Path(path).stat().st_size if path != "-" else "-"
        yield "Native libraries", {"library": f"libtightbeam_{name}.so", "bytes": size}
    missing = [name for name, path in paths.items() if path == "-" and not (rehearse and name == "cuda")]
    if missing:
        raise SystemExit(f"error: {', '.join(missing)} was not built; see the log above")


def _install() -> list[str]:
    """Install as `make cuda` does, for this GPU alone, without warnings as errors; without build isolation if
    scikit-build-core is installed, which needs no network.
    """
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("error: torch finds no GPU here, for which to compile; expected one")
    major, minor = torch.cuda.get_device_capability()
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "-v", "-e", str(ROOT)]
    if importlib.util.find_spec("scikit_build_core"):
        command += ["--no-build-isolation", "--no-index"]
    for name, value in (("CUDA", "ON"), ("CUDA_ARCHITECTURES", f"{major}{minor}-real")):
        command += ["--config-settings", f"cmake.define.TIGHTBEAM_{name}={value}"]
    return command
