"""The device of a measurement: memory taken on it by all processes, and synchronization."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

__all__ = ["Device", "device_of", "peak_of"]

EVERY_S = 0.01


class Device(Protocol):
    """``used_bytes``: taken by all processes on a GPU, by this process on the host. ``synchronize``: wait until all
    that was started is done."""

    def used_bytes(self) -> int: ...

    def synchronize(self) -> None: ...


class HostDevice:
    """Stand-in for a GPU in a rehearsal."""

    def used_bytes(self) -> int:
        resident = Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]
        return 1024 * int(resident)

    def synchronize(self) -> None:
        pass


class CudaDevice:
    """The GPU of this process. Made before anything else reaches it: from then on the context counts as idle."""

    def __init__(self) -> None:
        from cuda.bindings import runtime

        self._runtime: Any = runtime
        self._run(runtime.cudaFree, 0)

    def used_bytes(self) -> int:
        free, total = self._run(self._runtime.cudaMemGetInfo)
        return int(total - free)

    def synchronize(self) -> None:
        self._run(self._runtime.cudaDeviceSynchronize)

    def _run(self, function: Any, *arguments: Any) -> Any:
        code, *results = function(*arguments)
        if code != self._runtime.cudaError_t.cudaSuccess:
            raise RuntimeError(f"CUDA: {function.__name__} failed ({code.name})")
        return results


def device_of(name: str) -> Device:
    """``name``: "cuda" or "cpu"."""
    return CudaDevice() if name == "cuda" else HostDevice()


class Peak:
    """The most bytes taken so far beyond those when it was made."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._idle = device.used_bytes()
        self.bytes = 0

    def sample(self) -> None:
        self.bytes = max(self.bytes, self._device.used_bytes() - self._idle)


@contextmanager
def peak_of(device: Device) -> Iterator[Peak]:
    """Sample every 10 ms; enough for allocators that never return memory."""
    peak, over = Peak(device), threading.Event()

    def watch() -> None:
        while not over.wait(EVERY_S):
            peak.sample()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        over.set()
        watcher.join()
        peak.sample()
