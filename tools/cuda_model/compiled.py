"""Machine code of a kernel: compiled by NVRTC, disassembled by nvdisasm, both kept below ``build/cuda-model``."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tightbeam.plugins.tensorrt import compiler
from tightbeam.plugins.tensorrt.compiler import CACHE, compile_kernel
from tools.cuda_model.sass import Listing, parse, reduced

__all__ = ["BUILD", "listing_of"]

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "cuda-model"
PACKAGE = "nvidia-cuda-nvdisasm"


def listing_of(folder: str, name: str, capability: str) -> Listing:
    """Compile a kernel and read its machine code.

    Parameters
    ----------
    folder
        Folder of the operator below ``plugins/ops``.
    name
        The kernel, a C++ expression.
    capability
        Compute capability, such as "90".

    Raises
    ------
    TensorRTError
        The kernel does not compile.
    SystemExit
        nvdisasm is missing.
    """
    os.environ.setdefault(CACHE, str(BUILD))
    kernel = compile_kernel(folder, name, capability)
    path = BUILD / "sass" / f"{hashlib.sha256(kernel.cubin).hexdigest()}.gz"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        text = reduced(_disassembled(kernel.cubin), kernel.symbol)
        with tempfile.TemporaryDirectory(dir=path.parent) as own:
            written = Path(own) / path.name
            written.write_bytes(gzip.compress(text.encode(), 1))
            written.replace(path)
    text = gzip.decompress(path.read_bytes()).decode()
    return parse(re.sub(r'"[^"]*/plugins/', f'"{compiler.SOURCES}/', text))  # it may have been another copy of them


def _disassembled(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([_nvdisasm(), "-gi", file.name], capture_output=True, text=True, check=True).stdout


def _nvdisasm() -> str:
    """The toolkit's own, else the package's, which may be installed or lie in ``build/cuda-model/python``."""
    folders = [Path(home) / "bin" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    for place in (*sys.path, str(BUILD / "python")):
        folders += Path(place).glob("nvidia/*/bin") if place else []
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, folders)])
    found = shutil.which("nvdisasm", path=path)
    if found is None:
        raise SystemExit(
            f"error: nvdisasm is missing; expected the CUDA toolkit's or the package {PACKAGE}: "
            f"python -m pip install --target {BUILD.relative_to(ROOT) / 'python'} {PACKAGE}"
        )
    return found
