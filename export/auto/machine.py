"""Memory bandwidth and matrix rate of this machine, measured once and stored in the user's cache folder."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

from tightbeam.graph_passes.caches.cost import Machine

__all__ = ["cache_file", "this_machine"]

READ_BYTES = 512 * 2**20
"""Larger than any cache."""
WIDTH = 1536
ROUNDS = 7


def cache_file() -> Path:
    """File of the measurements; without it they are taken again."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "tightbeam" / "machine.json"


def this_machine() -> Machine:
    """Measure memory bandwidth and matrix rate with all of torch's threads, in float32; about a second.

    Returns
    -------
    Machine
        Bytes/s and FLOP/s. The best of a few rounds: other processes only take time away. A processor that was
        measured before is read from ``cache_file()``.
    """
    name = f"{_processor()}, {torch.get_num_threads()} threads"
    path = cache_file()
    known = _read(path)
    if name not in known:
        known[name] = {"bandwidth": _bandwidth(), "rate": _rate()}
        _write(path, known)
    return Machine(**known[name])


def _bandwidth() -> float:
    numbers = torch.ones(READ_BYTES // 4)
    return READ_BYTES / _best_seconds(lambda: numbers.sum())


def _rate() -> float:
    one, other = torch.rand(WIDTH, WIDTH), torch.rand(WIDTH, WIDTH)
    return 2.0 * WIDTH**3 / _best_seconds(lambda: one @ other)


def _best_seconds(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _read(path: Path) -> dict[str, dict[str, float]]:
    """Earlier measurements; none from a file in another format."""
    try:
        known = json.loads(path.read_text("utf-8"))
        return {
            str(name): {"bandwidth": float(entry["bandwidth"]), "rate": float(entry["rate"])}
            for name, entry in known.items()
            if float(entry["bandwidth"]) > 0 and float(entry["rate"]) > 0
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write(path: Path, known: dict[str, dict[str, float]]) -> None:
    """Write the file if possible; without a cache folder every process measures again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError:
        pass
