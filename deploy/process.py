"""What a process may use and asks for: cores, by affinity and by its container's quota, and huge pages.

ONNX Runtime starts a thread for each core of the machine by default, whatever share of it the process has. Huge pages
save walks of page tables as a step reads the weights.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["allowed_cores", "quota", "with_huge_pages"]

CGROUPS = Path("/sys/fs/cgroup")
VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb"


def allowed_cores() -> int:
    """Return the number of cores, at least 1, that this process may use."""
    given = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(quota(), given)))


def quota(root: Path = CGROUPS, processes: Path = Path("/proc/self/cgroup")) -> float:
    """Return the processor time that control groups give this process, in cores; infinite without a limit.

    Parameters
    ----------
    root : Path
        Where control groups are mounted.
    processes : Path
        The file that names the process's own group.
    """
    own = [line.removeprefix("0::/") for line in _read(processes).splitlines() if line.startswith("0::/")]
    folder = root.joinpath(*own)
    groups = [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]
    return min(_version_1(root / "cpu"), *(_version_2(group / "cpu.max") for group in groups))


def _version_2(file: Path) -> float:
    """The quotient of ``QUOTA PERIOD``; ``max`` is no limit."""
    words = _read(file).split()
    return _share(*words) if len(words) == 2 else math.inf


def _version_1(folder: Path) -> float:
    """The same in two files; -1 is no limit."""
    return _share(*(_read(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")))


def _share(quota: str, period: str) -> float:
    """The quotient; what is no quotient of positive integers is no limit."""
    numbers = [int(word) if word.isdecimal() else 0 for word in (quota, period)]
    return numbers[0] / numbers[1] if all(numbers) else math.inf


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment of a new process in which glibc requests huge pages for large allocations.

    What the variable says already stays. It is read before a program's first line, so a running process cannot set it
    for itself; other systems and C libraries ignore it.
    """
    tunables = [entry for entry in environment.get(VARIABLE, "").split(":") if entry]
    if not any(entry.startswith(f"{TUNABLE}=") for entry in tunables):
        tunables.append(f"{TUNABLE}=1")
    return {**environment, VARIABLE: ":".join(tunables)}
