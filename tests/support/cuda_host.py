"""The CUDA kernels, compiled for the host on the shim of ``cuda_shim/``, and called with numpy arrays.

``kernels("kernels")`` compiles ``cuda_shim/kernels.cpp``, once for each content of its sources and of ``plugins/``.
The environment variable ``CUDA_SHIM_FLAGS`` adds flags, such as ``-fsanitize=address,undefined``.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
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

__all__ = ["FLOATS", "ORDERS", "GuardedMemory", "HostKernels", "HostLauncher", "kernels"]

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "tests" / "support" / "cuda_shim"
PLUGINS = ROOT / "plugins"
BUILD = ROOT / "build" / "cuda_shim"

FLAGS = (
    "-std=c++17 -O2 -g -fPIC -shared -Wall -Wextra -Werror -Wno-unknown-pragmas -fno-strict-aliasing -U_FORTIFY_SOURCE"
).split()

FLOATS = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
ORDERS = (0, 1, 2, 3, 12345)
"""How threads take turns, see block.h: forward, backward, first and last ones ahead, shuffled."""

GUARD_BYTES = 256
TYPES = {"int": np.int32, "long long": np.int64, "float": np.float32, "bool": np.bool_}
CTYPES = {"int": ctypes.c_int, "long long": ctypes.c_longlong, "float": ctypes.c_float, "bool": ctypes.c_bool}


@functools.cache
def kernels(name: str) -> HostKernels:
    """Those of ``cuda_shim/<name>.cpp``; the test is skipped where there is no C++ compiler."""
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
    if not library.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        written = library.with_suffix(f".{os.getpid()}")
        command = [*shlex.split(compiler), *flags, f"-I{PLUGINS}", f"-I{SHIM}", str(SHIM / f"{name}.cpp")]
        subprocess.run([*command, "-o", str(written)], check=True)
        written.replace(library)  # at once, so that another process never sees half a file
    return HostKernels(library)


class HostKernels:
    """The functions of one compiled file."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))

    def run(self, op: str, dtype: str, order: int, **arguments: Any) -> None:
        """Run the kernels of ``op``; ``arguments`` by the fields of its ``arguments.h``, arrays for pointers.

        Arrays are written in place. One that is given twice is one memory. Raises RuntimeError for what the shim finds
        (deadlocks, writes beyond shared memory) and for writes beyond an array or to an array that is only read.
        """
        fields = fields_of(op)
        structure = type(
            "Arguments", (ctypes.Structure,), {"_fields_": [(name, kind[1]) for name, kind in fields.items()]}
        )
        size = self.library[f"{op}_arguments"]
        size.restype = ctypes.c_size_t
        assert size() == ctypes.sizeof(structure), f"{op}/arguments.h was read wrongly"
        if fields.keys() != arguments.keys():
            raise TypeError(f"{op}: arguments that differ from its fields: {fields.keys() ^ arguments.keys()}")

        memory: dict[int, GuardedMemory] = {}
        values: dict[str, Any] = {}
        for name, (kind, ctype, _) in fields.items():
            value = arguments[name]
            if ctype is ctypes.c_void_p and value is not None:
                expected = FLOATS[dtype] if kind == "Float" else np.dtype(TYPES[kind])
                if value.dtype != expected or not value.flags.c_contiguous:
                    raise TypeError(f"{op}: {name} is {value.dtype}, expected {expected}, contiguous")
                if id(value) not in memory:
                    memory[id(value)] = GuardedMemory(value, self.library)
                values[name] = memory[id(value)].address
            else:
                values[name] = value
        self.call(f"{op}_{dtype}", ctypes.byref(structure(**values)), order)
        written = {
            id(arguments[name]) for name, (_, ctype, const) in fields.items() if ctype is ctypes.c_void_p and not const
        }
        for key, guarded in memory.items():
            guarded.check(op, key in written)

    @property
    def names(self) -> list[str]:
        """Of the kernels that the operators of this file start."""
        function = self.library["kernel_names"]
        function.restype = ctypes.c_char_p
        names: bytes = function()
        return names.decode().split("\n")[:-1]

    def call(self, name: str, *arguments: Any) -> None:
        """A function that returns an error text or null."""
        function = self.library[name]
        function.restype = ctypes.c_char_p
        error = function(*arguments)
        if error is not None:
            raise RuntimeError(f"{name}: {error.decode()}")


class HostLauncher:
    """Starts the kernels of a plan on the host, as a ``Launcher`` of ``plugins/tensorrt/launcher.py``.

    ``gpu``: what plans are made for. ``order``: how threads take turns. ``launched``: the names of the kernels.
    """

    def __init__(self, gpu: Gpu, order: int = 0) -> None:
        self.gpu = gpu
        self.order = order
        self.launched: list[str] = []

    def launch(self, folder: str, kernel: Kernel, stream: int) -> None:
        self.launched.append(kernel.name)
        grid, parameters = (ctypes.c_int * 3)(*kernel.grid), ctypes.c_void_p(kernel.parameters)
        launch = (grid, kernel.block, ctypes.c_uint(kernel.shared_bytes), parameters, self.order)
        library = kernels("attention" if folder.endswith("attention") else "kernels")
        library.call("launch_by_name", kernel.name.encode(), *launch)


class GuardedMemory:
    """A copy of an array, aligned as device memory is, between guards of NaN and -1."""

    guard_bytes = GUARD_BYTES

    def __init__(self, array: NDArray[Any], library: ctypes.CDLL) -> None:
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
        self.library = library
        self.set_access("poison")

    def set_access(self, access: str) -> None:
        """Under AddressSanitizer even reads of the guards are found."""
        try:
            function = self.library[f"__asan_{access}_memory_region"]
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


@functools.cache
def fields_of(op: str) -> dict[str, tuple[str, Any, bool]]:
    """The struct of ``ops/<op>/arguments.h``: name -> type of C, ctypes type, True where its data is only read."""
    text = re.sub(r"//.*", "", (PLUGINS / "ops" / op / "arguments.h").read_text())
    (body,) = re.findall(r"struct \w+ \{(.*?)\};", text, re.DOTALL)
    fields: dict[str, tuple[str, Any, bool]] = {}
    for statement in filter(None, map(str.strip, body.split(";"))):
        matched = re.fullmatch(r"(const )?(int|long long|float|bool|Float)(\*)? ([\w, ]+)", statement)
        assert matched, f"{op}/arguments.h: {statement}"
        const, kind, pointer, names = matched.groups()
        for name in names.split(","):
            fields[name.strip()] = kind, ctypes.c_void_p if pointer else CTYPES[kind], bool(const)
    return fields
