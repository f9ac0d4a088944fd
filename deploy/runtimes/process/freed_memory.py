"""Memory that was freed, and that the C library keeps for later.

glibc takes a large block from the system at first, and gives it back when it is freed. With each one that is freed it
raises the size from which it does so, up to 32 MB; blocks below come from heaps that small ones in use keep from
shrinking. So requests of many sizes let a server grow for as long as it runs (docs/explanation/security.md).
"""

from __future__ import annotations

import ctypes

__all__ = ["release_freed_memory", "return_large_blocks"]

LARGE_BYTES = 1 << 20
"""With 131,072, glibc's own first value, a batch of BART base took 4 % more time, for page faults; with this 1 %."""
M_MMAP_THRESHOLD = -3
"""The parameter of `mallopt` for the size from which a block is one of its own, in glibc's malloc.h."""


def return_large_blocks() -> None:
    """Have the blocks of `LARGE_BYTES` and more that this process frees given back at once.

    Other C libraries than glibc are left as they are.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def release_freed_memory() -> None:
    """Give freed memory back to the system, as far as the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
