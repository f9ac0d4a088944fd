"""Paths of the operators' native libraries, if they were built."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["ENVIRONMENT", "cpu_library", "cuda_library", "rtx_name_library", "tensorrt_library"]

SUFFIX = ".dll" if os.name == "nt" else ".so"  # on macOS too: CMake calls it a module
ENVIRONMENT = "TIGHTBEAM_LIBRARY"
"""Environment variable: the path of the library to use, or ``none``."""


def cpu_library() -> Path | None:
    """Find the library to register with ONNX Runtime for kernels on the CPU.

    Returns
    -------
    Path or None
        The file that the environment variable ``TIGHTBEAM_LIBRARY`` names, else the installed one. None if the variable
        is ``none`` or no library was built: the functions inside a model then run in its place, slower.

    Raises
    ------
    FileNotFoundError
        The variable names a file that does not exist.
    """
    return _library(f"libtightbeam_cpu{SUFFIX}")


def cuda_library() -> Path | None:
    """Find the library with CPU and CUDA kernels, to register with ONNX Runtime in place of the CPU library.

    Returns
    -------
    Path or None
        As :func:`cpu_library` returns it.

    Raises
    ------
    FileNotFoundError
        The variable ``TIGHTBEAM_LIBRARY`` names a file that does not exist.
    """
    return _library("libtightbeam_cuda.so")


def tensorrt_library() -> Path | None:
    """Find the library that plans the kernels of the TensorRT plugins.

    Returns
    -------
    Path or None
        None if it was not built.
    """
    return _built("libtightbeam_tensorrt.so")


def rtx_name_library() -> Path | None:
    """Find the empty library whose name leads TensorRT-RTX to its own library (``plugins/cmake/TensorRt.cmake``).

    Returns
    -------
    Path or None
        None if it was not built.
    """
    return _built("libtensorrt_rtx_name.so")


def _library(name: str) -> Path | None:
    wanted = os.environ.get(ENVIRONMENT)
    if wanted == "none":
        return None
    if wanted:
        if not Path(wanted).is_file():
            raise FileNotFoundError(f"{ENVIRONMENT} is {wanted!r}, which is not a file; name a library, or 'none'")
        return Path(wanted)
    return _built(name)


def _built(name: str) -> Path | None:
    # In an editable install, the sources and the built libraries are in two folders.
    package = __name__.rpartition(".")[0]  # tightbeam.plugins
    above = package.rpartition(".")[0]
    folders = [*sys.modules[package].__path__, *(f"{root}/plugins" for root in sys.modules[above].__path__)]
    for folder in folders:
        if (path := Path(folder) / "lib" / name).is_file():
            return path
    return None
