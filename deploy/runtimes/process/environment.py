"""Environment variables by which glibc's malloc is set for a new process. Other C libraries ignore them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["SERVER_MALLOC", "with_huge_pages"]

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb"
SERVER_MALLOC = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""Environment of a server in other code, for which a call to `return_large_blocks` cannot be made."""


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a new process in which glibc requests huge pages for large allocations.

    They save walks of page tables when a step reads the weights. Other tunables in the variable stay. It is read before
    a program's first line, so a running process cannot set it for itself.
    """
    tunables = [entry for entry in environment.get(VARIABLE, "").split(":") if entry]
    if not any(entry.startswith(f"{TUNABLE}=") for entry in tunables):
        tunables.append(f"{TUNABLE}=1")
    return {**environment, VARIABLE: ":".join(tunables)}
