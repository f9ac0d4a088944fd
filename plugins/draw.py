"""Draws from whole rows of scores by the native library, where it was built (``kernels/cpu/draw.cpp``)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from tightbeam.plugins.library import cpu_library

__all__ = ["Draw", "native_draw"]

Draw: TypeAlias = Callable[[Any, float, float, float], int]


@lru_cache(maxsize=1)
def native_draw() -> Draw | None:
    """Return the function that draws a token; None without a library, or with one that is older than it.

    Returns
    -------
    function or None
        Of scores float32 [vocabulary], contiguous; a number like the largest of them, or NaN; a temperature; and a
        number in [0, 1), which the tokens share in the order of their ids, each as much as its probability is.
        Returns -1 where no score is finite.
    """
    try:
        path = cpu_library()
        function = None if path is None else getattr(ctypes.CDLL(str(path)), "tightbeam_draw", None)
    except OSError:  # a session has its own error for a library that cannot be loaded
        return None
    if function is None:
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_longlong, ctypes.c_float, ctypes.c_float, ctypes.c_double]
    function.restype = ctypes.c_longlong

    def draw(scores: Any, best: float, temperature: float, uniform: float) -> int:
        return int(function(scores.ctypes.data, len(scores), best, temperature, uniform))

    return draw
