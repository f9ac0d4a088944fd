"""The memory of the test's process, from Linux's ``/proc``."""

from __future__ import annotations

from pathlib import Path

__all__ = ["clear_peak", "memory_bytes"]


def clear_peak() -> None:
    """Let the peak begin again at the memory of now."""
    Path("/proc/self/clear_refs").write_text("5")


def memory_bytes(kind: str) -> int:
    """Bytes of this process: resident now ("VmRSS"), or the most since the peak was cleared ("VmHWM")."""
    status = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in status if line.startswith(f"{kind}:"))
    return int(line.split()[1]) << 10
