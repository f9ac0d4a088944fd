"""Huge pages for what a process allocates: fewer walks of page tables as a step reads the weights that are packed."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["with_huge_pages"]

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb"


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment of a new process in which glibc requests huge pages for large allocations.

    What the variable says already stays. It is read before a program's first line, so a running process cannot set it
    for itself; other systems and C libraries ignore it.
    """
    tunables = [entry for entry in environment.get(VARIABLE, "").split(":") if entry]
    if not any(entry.startswith(f"{TUNABLE}=") for entry in tunables):
        tunables.append(f"{TUNABLE}=1")
    return {**environment, VARIABLE: ":".join(tunables)}
