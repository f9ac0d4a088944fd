"""The native function that samples a token from a full row of scores (``kernels/cpu/draw.cpp``)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from tightbeam.plugins.library import cpu_library

__all__ = ["Draw", "native_draw"]

Draw: TypeAlias = Callable[[Any, float, float, float], int]
"""``draw(scores, best, temperature, uniform)``; see :func:`native_draw`."""


@lru_cache(maxsize=1)
def native_draw() -> Draw | None:
    """Load the native function that samples a token.

    Returns
    -------
    function or None
        ``draw(scores, best, temperature, uniform)`` returns the id of the sampled token, or -1 if no score is finite.
        ``scores`` is float32 [vocabulary] and contiguous. ``best`` is about the largest score, or NaN if that is not
        known. ``uniform`` is a number in [0, 1): the tokens divide this range in the order of their ids, each in
        proportion to its probability at the temperature, and the token whose part holds the number is returned.
        None if the library was not built, or is older than this function.
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
