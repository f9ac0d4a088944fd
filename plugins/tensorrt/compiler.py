"""The compiler of the CUDA kernels, NVRTC: it compiles a kernel once for each kind of GPU, and caches it on disk."""

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
"""Environment variable: the folder for compiled kernels, in place of ``~/.cache/tightbeam``."""
SOURCES = Path(__file__).parent.parent
OPTIONS = ("-std=c++17", "-default-device", "-lineinfo")


@dataclass(frozen=True)
class CompiledKernel:
    """A compiled kernel.

    Attributes
    ----------
    symbol
        The kernel's mangled name in the machine code.
    cubin
        The machine code.
    """

    symbol: str
    cubin: bytes


_carried: dict[str, Path] = {}
"""Files of compiled kernels that engines carry, by key."""


def carry_kernels(files: Iterable[Path]) -> None:
    """Let ``compile_kernel`` use the compiled kernels that an engine carries.

    Parameters
    ----------
    files
        Files that ``write_carried`` wrote.
    """
    _carried.update({path.stem: path for path in files})


def write_carried(folder: Path, operator: str, name: str, capability: str) -> Path:
    """Compile a kernel for an engine to carry.

    Parameters
    ----------
    folder
        Folder of the file to write.
    operator, name, capability
        As in :func:`compile_kernel`.

    Returns
    -------
    Path
        The file, which is named by the kernel's key.

    Raises
    ------
    TensorRTError
        As in :func:`compile_kernel`.
    OSError
        The file cannot be written.
    """
    path = folder / f"{_key(operator, name, capability, _major(_version(_nvrtc())))}.cubin"
    path.write_bytes(_content(compile_kernel(operator, name, capability)))
    return path


def compile_kernel(operator: str, name: str, capability: str, *, anew: bool = False) -> CompiledKernel:
    """Read a kernel from an engine's folder or from the cache on disk, or compile it.

    A file is used if it was made for the same kernel, sources, compute capability, compiler options and version of
    CUDA. For an engine's file, which needs no NVRTC, that is the major version of the CUDA bindings; for a file of the
    cache, it is NVRTC's version.

    Parameters
    ----------
    operator
        Folder of the operator below ``plugins/ops``.
    name
        The kernel, a C++ expression.
    capability
        Compute capability, such as "80".
    anew
        True to ignore the files of engines.

    Returns
    -------
    CompiledKernel
        The machine code, and the kernel's name in it.

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
    """Find the folder of the cache on disk.

    Returns
    -------
    Path or None
        ``$TIGHTBEAM_CACHE/kernels``, else ``tightbeam/kernels`` in ``$XDG_CACHE_HOME`` or ``~/.cache``. None for a user
        without a home folder.
    """
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
    except Exception as error:  # a package without its library raises exceptions of its own
        raise TensorRTError(f"NVRTC, which compiles the kernels, cannot be loaded ({error}); {INSTALL}") from error
    return nvrtc


def _version(nvrtc: Any) -> str:
    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


@functools.cache
def _cuda_headers() -> Path:
    """Folder that has cuda_fp16.h."""
    from cuda.pathfinder import find_nvidia_header_directory

    found = find_nvidia_header_directory("cudart")
    if found is None or not (Path(found) / "cuda_fp16.h").is_file():
        raise TensorRTError(f"CUDA's headers (cuda_fp16.h), which the kernels include, are missing; {INSTALL}")
    return Path(found)


@functools.cache
def _key(operator: str, name: str, capability: str, version: str) -> str:
    """Hash of everything that the compiled kernel depends on."""
    digest = hashlib.sha256(repr((operator, name, capability, version, OPTIONS)).encode())
    for included, content in sorted(_headers_of(operator).items()):
        digest.update(included.encode() + b"\0" + content + b"\0")
    return digest.hexdigest()


def _headers_of(operator: str) -> dict[str, bytes]:
    """Headers below ``plugins`` that an operator's kernels include, directly or indirectly, and their contents."""
    found: dict[str, bytes] = {}
    waiting = [f"ops/{operator}/kernel_cuda.cuh"]
    while waiting:
        included = waiting.pop()
        path = SOURCES / included
        if included not in found and path.is_file():
            found[included] = path.read_bytes()
            waiting += re.findall(r'#include "([^"]+)"', found[included].decode())
    return found


# A file begins with a line that has the symbol and the SHA-256 of the machine code, which follows.


def _read(path: Path) -> CompiledKernel | None:
    """Read a file of a compiled kernel; None if it is missing or damaged."""
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
    """Write a file in one step, so that no process reads half of it. A cache that cannot be written is ignored."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder) / path.name
            written.write_bytes(_content(found))
            written.replace(path)
    except OSError:
        pass
