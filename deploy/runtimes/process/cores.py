"""The cores that affinity and its container's quota allow a process.

By default ONNX Runtime starts a thread for each core of the machine, even if the process may use only a share of it.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["allowed_cores", "quota"]

CGROUPS = Path("/sys/fs/cgroup")


def allowed_cores() -> int:
    """Return the number of cores, at least 1, that this process may use."""
    given = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(quota(), given)))


def quota(root: Path = CGROUPS, processes: Path = Path("/proc/self/cgroup")) -> float:
    """Return the processor time that control groups give this process, in cores; infinite without a limit.

    Parameters
    ----------
    root : Path
        The folder in which control groups are mounted.
    processes : Path
        The file that names the process's own group.
    """
    own = [line.removeprefix("0::/") for line in _read(processes).splitlines() if line.startswith("0::/")]
    folder = root.joinpath(*own)
    groups = [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]
    return min(_version_1(root / "cpu"), *(_version_2(group / "cpu.max") for group in groups))


def _version_2(file: Path) -> float:
    """Read the quotient of ``QUOTA PERIOD``; infinite for ``max``."""
    words = _read(file).split()
    return _share(*words) if len(words) == 2 else math.inf


def _version_1(folder: Path) -> float:
    """Read the quotient of two files; infinite for -1."""
    return _share(*(_read(folder / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")))


def _share(quota: str, period: str) -> float:
    """Return the quotient of two positive integers; infinite for other text."""
    numbers = [int(word) if word.isdecimal() else 0 for word in (quota, period)]
    return numbers[0] / numbers[1] if all(numbers) else math.inf


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
