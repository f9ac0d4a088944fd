"""Memory that was freed, and that the C library keeps for later.

glibc takes a large block from the system at first, and gives it back when it is freed. With each one that is freed it
raises the size from which it does so, up to 32 MB; blocks below come from heaps that small ones in use keep from
shrinking. So requests of many sizes let a server grow for as long as it runs (docs/explanation/security.md).
"""

from __future__ import annotations

import ctypes

__all__ = ["release_freed_memory", "return_large_blocks"]

LARGE_BYTES, KEPT_BYTES = 4 << 20, 32 << 20
"""The size from which a block is given back when it is freed, and the most of the heap's end that is kept. With 1 MB
and glibc's own 128 KB a batch of BART base had four times the page faults, which took 3 % of its time."""
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
"""The parameters of `mallopt` for both, in glibc's malloc.h. With one of them set, glibc leaves both as they are."""


def return_large_blocks() -> None:
    """Have the blocks of `LARGE_BYTES` and more that this process frees given back at once.

    Other C libraries than glibc are left as they are.
    """
    library = _c_library()
    if library is not None and hasattr(library, "gnu_get_libc_version"):
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def release_freed_memory() -> None:
    """Give freed memory back to the system, as far as the C library can."""
    trim = getattr(_c_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except TypeError:  # Windows, which has no name for what a process has loaded
        return None
