"""Paths of the native libraries of the operators, if they were built."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["ENVIRONMENT", "cpu_library", "cuda_library", "rtx_name_library", "tensorrt_library"]

ENVIRONMENT = "TIGHTBEAM_LIBRARY"
"""Environment variable: path of the library to use, or ``none``."""


def cpu_library() -> Path | None:
    """Find the library to register with ONNX Runtime for kernels on the CPU.

    Returns
    -------
    Path or None
        None where there is no library: the function bodies inside a model then serve, slower. The environment variable
        ``TIGHTBEAM_LIBRARY`` names another file, or ``none``.

    Raises
    ------
    FileNotFoundError
        The variable names a file that does not exist.
    """
    return _library("libtightbeam_cpu.so")


def cuda_library() -> Path | None:
    """Find the library with kernels for CUDA beside those for the CPU: the one to register in place of the other.

    Returns and raises as :func:`cpu_library`.
    """
    return _library("libtightbeam_cuda.so")


def tensorrt_library() -> Path | None:
    """Find the library that plans the kernels of the TensorRT plugins; None where it was not compiled."""
    return _built("libtightbeam_tensorrt.so")


def rtx_name_library() -> Path | None:
    """Find the empty library whose name lets TensorRT-RTX find its own library (``plugins/cmake/TensorRt.cmake``)."""
    return _built("libtensorrt_rtx_name.so")


def _library(name: str) -> Path | None:
    wanted = os.environ.get(ENVIRONMENT)
    if wanted == "none":
        return None
    if wanted:
        if not Path(wanted).is_file():
            raise FileNotFoundError(f"{ENVIRONMENT} is {wanted!r}, which is no file; name a library, or 'none'")
        return Path(wanted)
    return _built(name)


def _built(name: str) -> Path | None:
    # In an editable install, the sources and what was built from them are in two folders.
    package = __name__.rpartition(".")[0]  # tightbeam.plugins
    above = package.rpartition(".")[0]
    folders = [*sys.modules[package].__path__, *(f"{root}/plugins" for root in sys.modules[above].__path__)]
    for folder in folders:
        if (path := Path(folder) / "lib" / name).is_file():
            return path
    return None
