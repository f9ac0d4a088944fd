"""The CUDA kernels, compiled for the host on the shim of ``cuda_shim/``, and launched there by their names.

``kernels("search")`` compiles ``cuda_shim/search.cpp``, once for each content of its sources and of ``plugins/``. The
environment variable ``CUDA_SHIM_FLAGS`` adds flags, such as ``-fsanitize=address,undefined``.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tightbeam.plugins.tensorrt.native import Gpu, Kernel

__all__ = ["FLOATS", "FLOATS_IN_TURN", "ORDERS", "GuardedMemory", "HostKernels", "HostLauncher", "kernels"]

ROOT = Path(__file__).resolve().parents[3]
SHIM = ROOT / "tests" / "support" / "operators" / "cuda_shim"
PLUGINS = ROOT / "plugins"
BUILD = ROOT / "build" / "cuda_shim"

FLAGS = (
    "-std=c++17 -O1 -fPIC -shared -Wall -Wextra -Werror -Wno-unknown-pragmas -fno-strict-aliasing -U_FORTIFY_SOURCE"
).split()
"""``-O2 -g`` takes the compiler twice the seconds, and these kernels run for few."""

FLOATS = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
FLOATS_IN_TURN = ["float32", "float16", pytest.param("bfloat16", marks=pytest.mark.slow)]
"""The same, of which ``make slow`` runs bfloat16: float16 has the same templates."""
ORDERS = (0, 1, 2, 3, 12345)
"""Orders in which threads run, see block.h: forward, backward, first and last ones ahead, shuffled."""

GUARD_BYTES = 256


@functools.cache
def kernels(name: str) -> HostKernels:
    """The kernels of ``cuda_shim/<name>.cpp``; the test is skipped where there is no C++ compiler."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler: neither CXX nor g++ nor clang++")
    flags = [*FLAGS, *shlex.split(os.environ.get("CUDA_SHIM_FLAGS", ""))]
    sources = [
        path for folder in (SHIM, PLUGINS) for path in folder.rglob("*") if path.suffix in (".h", ".cuh", ".cpp")
    ]
    digest = hashlib.sha256(repr([compiler, flags]).encode())
    for path in sorted(sources):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    library = BUILD / f"{name}-{digest.hexdigest()[:16]}.so"
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be compiling it
        if not library.exists():
            written = library.with_suffix(f".{os.getpid()}")
            command = [*shlex.split(compiler), *flags, f"-I{PLUGINS}", f"-I{SHIM}", str(SHIM / f"{name}.cpp")]
            subprocess.run([*command, "-o", str(written)], check=True)
            written.replace(library)
    return HostKernels(library)


class HostKernels:
    """The functions of one compiled file."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))

    @property
    def names(self) -> list[str]:
        """Names of the kernels that the operators of this file launch."""
        function = self.library["kernel_names"]
        function.restype = ctypes.c_char_p
        names: bytes = function()
        return names.decode().split("\n")[:-1]

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns an error text or null. Raises RuntimeError with that text."""
        function = self.library[name]
        function.restype = ctypes.c_char_p
        error = function(*arguments)
        if error is not None:
            raise RuntimeError(f"{name}: {error.decode()}")


class HostLauncher:
    """Starts the kernels of a plan on the host, as a ``Launcher`` of ``plugins/tensorrt/launcher.py``.

    ``gpu``: the GPU that plans are made for. ``order``: one of ``ORDERS``. ``launched``: the names of the kernels.
    """

    def __init__(self, gpu: Gpu, order: int = 0) -> None:
        self.gpu = gpu
        self.order = order
        self.launched: list[str] = []

    def launch(self, folder: str, kernel: Kernel, stream: int) -> None:
        self.launched.append(kernel.name)
        grid, parameters = (ctypes.c_int * 3)(*kernel.grid), ctypes.c_void_p(kernel.parameters)
        launch = (grid, kernel.block, ctypes.c_uint(kernel.shared_bytes), parameters, self.order)
        library = kernels("attention" if folder.endswith("attention") else "search")
        library.call("launch_by_name", kernel.name.encode(), *launch)


class GuardedMemory:
    """A copy of an array, aligned as device memory is, between guards of NaN and -1."""

    guard_bytes = GUARD_BYTES

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.buffer = np.full(array.nbytes + 3 * GUARD_BYTES, 0xFF, dtype=np.uint8)
        start = GUARD_BYTES + -(self.buffer.ctypes.data + GUARD_BYTES) % GUARD_BYTES
        self.inside = slice(start, start + array.nbytes)
        self.buffer[self.inside] = np.frombuffer(array.tobytes(), dtype=np.uint8)
        self.before = self.buffer.copy()
        self.address = self.buffer.ctypes.data + start
        self.regions = (
            (self.address - GUARD_BYTES, GUARD_BYTES),
            (self.address + array.nbytes, GUARD_BYTES),
        )
        self.set_access("poison")

    def set_access(self, access: str) -> None:
        """Poison or unpoison the guards: under AddressSanitizer even reads of them are found."""
        try:
            function = ctypes.CDLL(None)[f"__asan_{access}_memory_region"]
        except AttributeError:
            return
        for address, count in self.regions:
            function(ctypes.c_void_p(address), ctypes.c_size_t(count))

    def check(self, op: str, writable: bool) -> None:
        self.set_access("unpoison")
        changed = self.buffer != self.before
        if writable:
            changed[self.inside] = False
            self.array[...] = self.buffer[self.inside].view(self.array.dtype).reshape(self.array.shape)
        if changed.any():
            raise RuntimeError(f"{op}: a kernel wrote outside its outputs")
