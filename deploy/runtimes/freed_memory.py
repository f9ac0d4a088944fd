"""Memory that was freed, and that the C library keeps for later."""

from __future__ import annotations

import ctypes

__all__ = ["release_freed_memory"]


def release_freed_memory() -> None:
    """Give freed memory back to the system. glibc keeps it for its threads; other C libraries may not, or cannot."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
