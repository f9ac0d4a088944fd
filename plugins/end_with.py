"""The native function that ends this process with another one (``kernels/end_with.cpp``)."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from tightbeam.plugins.library import cpu_library

__all__ = ["end_with"]


def end_with(process: int, seconds: float, file: Path, message: str) -> bool:
    """Have this process killed if it outlives another one.

    A native thread does it, which needs neither the interpreter nor its lock.

    Parameters
    ----------
    process
        The other process. If it has ended already, the time runs from now.
    seconds
        The time to end by itself.
    file
        A file that is removed then.
    message
        Text that is written to standard error then.

    Returns
    -------
    bool
        False if nothing will happen: the library was not built or cannot be loaded, or the kernel or a sandbox has no
        pidfd.
    """
    try:
        path = cpu_library()
        function = None if path is None else getattr(ctypes.CDLL(str(path)), "tightbeam_end_with", None)
    except OSError:
        return False
    if function is None:
        return False
    function.argtypes = [ctypes.c_int, ctypes.c_double, ctypes.c_char_p, ctypes.c_char_p]
    function.restype = ctypes.c_int
    return int(function(process, seconds, os.fsencode(file), message.encode(errors="replace"))) == 0
