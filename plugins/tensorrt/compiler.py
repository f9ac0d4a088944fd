"""NVRTC: one kernel of an operator's ``kernel_cuda.cuh`` for one GPU, compiled once and cached on disk."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightbeam.plugins.tensorrt.distribution import INSTALL
from tightbeam.plugins.tensorrt.errors import TensorRTError

__all__ = ["CACHE", "CompiledKernel", "cache_folder", "carry_kernels", "compile_kernel", "write_carried"]

CACHE = "TIGHTBEAM_CACHE"
"""Environment variable: folder for compiled kernels, in place of ``~/.cache/tightbeam``."""
SOURCES = Path(__file__).parent.parent
OPTIONS = ("-std=c++17", "-default-device", "-lineinfo")


@dataclass(frozen=True)
class CompiledKernel:
    """``symbol``: the kernel's name in ``cubin``."""

    symbol: str
    cubin: bytes


_carried: dict[str, Path] = {}
"""Files of kernels that engines carry, by key."""


def carry_kernels(files: Iterable[Path]) -> None:
    """Let ``compile_kernel`` read kernels from files that ``write_carried`` wrote."""
    _carried.update({path.stem: path for path in files})


def write_carried(folder: Path, operator: str, name: str, capability: str) -> Path:
    """Compile a kernel, as ``compile_kernel`` does, into a file named by its key. Raises OSError as well."""
    path = folder / f"{_key(operator, name, capability, _major(_version(_nvrtc())))}.cubin"
    path.write_bytes(_content(compile_kernel(operator, name, capability)))
    return path


def compile_kernel(operator: str, name: str, capability: str, *, anew: bool = False) -> CompiledKernel:
    """Read a kernel from an engine's folder or from the cache on disk, or compile it.

    A file serves if its operator's sources, the kernel, its compute capability, the compiler's options and the version
    of CUDA are the same: the major version for a file of an engine, which needs no NVRTC, else NVRTC's.

    Parameters
    ----------
    operator
        Folder of the operator below ``plugins/ops``.
    name
        The kernel, a C++ expression.
    capability
        Compute capability, such as "80".
    anew
        Read no engine's file.

    Raises
    ------
    TensorRTError
        NVRTC or CUDA's headers are missing, or the kernel cannot be compiled.
    """
    if _carried and not anew and (found := _read_carried(operator, name, capability)) is not None:
        return found
    nvrtc, headers = _nvrtc(), _cuda_headers()
    folder = cache_folder()
    if folder is None:
        return _compile(nvrtc, headers, operator, name, capability)
    path = folder / f"{_key(operator, name, capability, _version(nvrtc))}.cubin"
    cached = _read(path)
    if cached is not None:
        return cached
    found = _compile(nvrtc, headers, operator, name, capability)
    _write(path, found)
    return found


def cache_folder() -> Path | None:
    """Folder of compiled kernels: ``$TIGHTBEAM_CACHE/kernels``, else below ``$XDG_CACHE_HOME`` or ``~/.cache``; None
    for a user without a home."""
    if named := os.environ.get(CACHE):
        return Path(named) / "kernels"
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tightbeam" / "kernels"
    except RuntimeError:
        return None


def _read_carried(operator: str, name: str, capability: str) -> CompiledKernel | None:
    path = _carried.get(_key(operator, name, capability, _major(importlib.metadata.version("cuda-bindings"))))
    return _read(path) if path is not None else None


def _major(version: str) -> str:
    return version.partition(".")[0]


def _compile(nvrtc: Any, headers: Path, operator: str, name: str, capability: str) -> CompiledKernel:
    def run(function: Any, *arguments: Any) -> Any:
        code, *results = function(*arguments)
        if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise TensorRTError(f"NVRTC cannot compile {name} for compute capability {capability}: {code.name}")
        return results[0] if results else None

    source = f'#include "ops/{operator}/kernel_cuda.cuh"\n'.encode()
    program = run(nvrtc.nvrtcCreateProgram, source, b"kernel.cu", 0, [], [])
    try:
        run(nvrtc.nvrtcAddNameExpression, program, name.encode())
        options = [f"--gpu-architecture=sm_{capability}", f"-I{SOURCES}", f"-I{headers}", *OPTIONS]
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = b" " * run(nvrtc.nvrtcGetProgramLogSize, program)
            run(nvrtc.nvrtcGetProgramLog, program, log)
            reason = next(iter(log.decode(errors="replace").strip("\0 \n").splitlines()), code.name)
            raise TensorRTError(
                f"NVRTC cannot compile {name} for compute capability {capability}: {reason}; does NVRTC "
                f"{_version(nvrtc)} support this GPU?"
            )
        cubin = b" " * run(nvrtc.nvrtcGetCUBINSize, program)
        run(nvrtc.nvrtcGetCUBIN, program, cubin)
        return CompiledKernel(run(nvrtc.nvrtcGetLoweredName, program, name.encode()).decode(), cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@functools.cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:  # a package that lacks its library raises its own kinds
        raise TensorRTError(f"NVRTC, which compiles the kernels, cannot be loaded ({error}); {INSTALL}") from error
    return nvrtc


def _version(nvrtc: Any) -> str:
    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


@functools.cache
def _cuda_headers() -> Path:
    """The folder with cuda_fp16.h."""
    from cuda.pathfinder import find_nvidia_header_directory

    found = find_nvidia_header_directory("cudart")
    if found is None or not (Path(found) / "cuda_fp16.h").is_file():
        raise TensorRTError(f"CUDA's headers (cuda_fp16.h), which the kernels include, are missing; {INSTALL}")
    return Path(found)


@functools.cache
def _key(operator: str, name: str, capability: str, version: str) -> str:
    """Digest of everything that the result depends on."""
    digest = hashlib.sha256(repr((operator, name, capability, version, OPTIONS)).encode())
    for included, content in sorted(_headers_of(operator).items()):
        digest.update(included.encode() + b"\0" + content + b"\0")
    return digest.hexdigest()


def _headers_of(operator: str) -> dict[str, bytes]:
    """The headers below ``plugins`` that an operator's kernels include, one through another, and their contents."""
    found: dict[str, bytes] = {}
    waiting = [f"ops/{operator}/kernel_cuda.cuh"]
    while waiting:
        included = waiting.pop()
        path = SOURCES / included
        if included not in found and path.is_file():
            found[included] = path.read_bytes()
            waiting += re.findall(r'#include "([^"]+)"', found[included].decode())
    return found


# A file is a line with the symbol and the SHA-256 of the rest, and the rest.


def _read(path: Path) -> CompiledKernel | None:
    """Read a cached kernel; None where there is none, or the file is not whole."""
    try:
        head, _, cubin = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    matched = re.fullmatch(rb"(\w+) ([0-9a-f]{64})", head)
    if matched is None or hashlib.sha256(cubin).hexdigest().encode() != matched[2]:
        return None
    return CompiledKernel(matched[1].decode(), cubin)


def _content(found: CompiledKernel) -> bytes:
    return f"{found.symbol} {hashlib.sha256(found.cubin).hexdigest()}\n".encode() + found.cubin


def _write(path: Path, found: CompiledKernel) -> None:
    """Replace the file at once, so that no process reads half of it; a cache that cannot be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder) / path.name
            written.write_bytes(_content(found))
            written.replace(path)
    except OSError:
        pass
