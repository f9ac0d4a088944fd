"""Memory bandwidth and matrix rates of this machine, measured and stored in the user's cache folder."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tightbeam.deploy.console import counted
from tightbeam.graph_passes.caches.cost import Machine
from tightbeam.plugins.instruction_set import instruction_set

__all__ = ["Measurement", "cache_file", "this_machine"]

READ_BYTES = 512 * 2**20
"""Larger than any cache."""
WIDTH = 1536
ROUNDS = 5
VALID_S = 7 * 24 * 3600
"""Age from which a measurement is taken again."""
BUSY_VALID_S = 600
"""The same if the machine was busy."""
INTEGER_RATES = ("integer_rate", "source_rate", "latent_rate")
"""Numbers that are measured for int8 alone."""
BUSY = 0.9
"""Share of the processors below which the machine counts as busy with other processes."""


@dataclass(frozen=True)
class Measurement:
    """Bandwidth and rate of a machine, and the circumstances of their measurement."""

    bandwidth: float
    """bytes a second"""
    rate: float
    """operations a second"""
    taken_s: float
    """seconds since 1970"""
    share: float
    """share of the processors that the measurement got: far below 1 if the machine was busy"""
    integer_rate: float = 0.0
    """operations a second of int8 products; 0 if not measured"""
    source_rate: float = 0.0
    """the same of attention over keys and values in int8"""
    latent_rate: float = 0.0
    """the same of attention over states in int8"""

    @property
    def machine(self) -> Machine:
        """The numbers of the cost model."""
        return Machine(self.bandwidth, self.rate, **{name: getattr(self, name) for name in INTEGER_RATES})

    @property
    def was_busy(self) -> bool:
        """True if other processes used the processors, too."""
        return self.share < BUSY

    def is_valid(self) -> bool:
        """True unless the measurement is old; a busy machine's is old after minutes."""
        return 0 <= time.time() - self.taken_s < (BUSY_VALID_S if self.was_busy else VALID_S)

    def origin(self) -> str:
        """Age and reliability, in words."""
        age_s = max(0.0, time.time() - self.taken_s)
        days, hours = int(age_s // 86400), int(age_s // 3600)
        age = f"{counted(days, 'day')} ago" if days else f"{counted(hours, 'hour')} ago" if hours else "just now"
        busy = ", on a busy machine" if self.was_busy else ""
        return f"measured {age}{busy}"


def cache_file() -> Path:
    """File of the measurements; without it they are taken again."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "tightbeam" / "machine.json"


def this_machine(*, integers: bool = False) -> Measurement:
    """Measure memory bandwidth and matrix rate with all threads, in float32; a second or two.

    Parameters
    ----------
    integers
        Measure the rates of int8 too, by the operators of its bundles.

    Returns
    -------
    Measurement
        The best of a few rounds: other processes only take time away. A measurement of the last week is read from
        ``cache_file()``, one of a busy machine for ten minutes.
    """
    threads = _threads()
    name = f"{_processor()}, {instruction_set()}, {threads} threads"
    path = cache_file()
    known = _read(path)
    if name not in known or not known[name].is_valid() or (integers and not known[name].latent_rate):
        known[name] = _measure(threads, integers)
        _write(path, known)
    return known[name]


def _measure(threads: int, integers: bool) -> Measurement:
    """Measure this machine."""
    operators: dict[str, tuple[float, Callable[[], object]]] = {}
    if integers:  # imported here, since a short process needs no runtime
        from tightbeam.export.auto.integer_operators import integer_operators

        operators = integer_operators(WIDTH, threads)
    rows, vector = np.ones((READ_BYTES // 4 // WIDTH, WIDTH), np.float32), np.ones(WIDTH, np.float32)
    one, other = np.random.default_rng(0).random((2, WIDTH, WIDTH), np.float32)
    wall_s, used_s = time.perf_counter(), time.process_time()
    bandwidth = rows.nbytes / _best_seconds(lambda: rows @ vector)
    rate = 2.0 * WIDTH**3 / _best_seconds(lambda: one @ other)
    rates = {name: operations / _best_seconds(work) for name, (operations, work) in operators.items()}
    wall_s, used_s = time.perf_counter() - wall_s, time.process_time() - used_s
    return Measurement(bandwidth, rate, time.time(), min(1.0, used_s / wall_s / threads), **rates)


def _best_seconds(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _threads() -> int:
    """Threads that numpy's products use: a limit of the environment, or the processors of this process."""
    limit = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(int(limit), processors)) if limit.isdecimal() else processors


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _read(path: Path) -> dict[str, Measurement]:
    """Earlier measurements; none from a file in another format."""
    fields = ("bandwidth", "rate", "taken_s", "share")
    try:
        known = json.loads(path.read_text("utf-8"))
        return {
            str(name): Measurement(
                **{field: float(entry[field]) for field in fields},
                **{field: float(entry.get(field, 0)) for field in INTEGER_RATES},
            )
            for name, entry in known.items()
            if all(float(entry[field]) > 0 for field in fields)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write(path: Path, known: dict[str, Measurement]) -> None:
    """Write the file if possible; without a cache folder every process measures again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(json.dumps({name: asdict(found) for name, found in known.items()}, indent=2) + "\n", "utf-8")
        partial.replace(path)
    except OSError:
        pass
