"""The place where a section of the GPU check runs, and its clock: replays of CUDA graphs on a GPU; in a rehearsal the
host, where times mean nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch

from tightbeam.plugins.tensorrt.compiler import compile_kernel
from tightbeam.plugins.tensorrt.launcher import CudaLauncher
from tightbeam.plugins.tensorrt.native import Kernel

__all__ = ["Call", "Host", "OnGpu", "Times", "place_of"]

Call = Callable[[], object]
MEASURED_S = 0.2
"""Seconds of replays of one case, within the fewest and the most replays."""
LEAST, MOST = 20, 300


@dataclass(frozen=True)
class Times:
    """Seconds of one call: the median, and the tenth and ninetieth percentile."""

    median_s: float
    low_s: float
    high_s: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Times:
        ordered, last = sorted(seconds), len(seconds) - 1
        return cls(statistics.median(ordered), ordered[round(last * 0.1)], ordered[round(last * 0.9)])

    def cells(self) -> dict[str, str]:
        """Columns of a table."""
        spread = f"{self.low_s * 1e6:.1f} to {self.high_s * 1e6:.1f}"
        return {"time, µs": f"{self.median_s * 1e6:.1f}", "10th to 90th percentile, µs": spread}


class Host:
    """A rehearsal: torch on the CPU, the host's clock. The tests derive a place from it that launches kernels.

    ``device``: torch's name. ``l2_bytes``: what may stay near the multiprocessors from one call to the next.
    """

    device = "cpu"
    l2_bytes = 4096

    def launcher(self) -> Any:
        raise RuntimeError("the CUDA kernels need a GPU here; the tests run them on a host shim")

    def compile(self, kernels: Iterable[tuple[str, str]], launcher: Any) -> None:
        """Compile kernels, each given as operator folder and name, all at once; one alone takes seconds."""

    def stream(self) -> int:
        """The stream that torch enqueues on at this moment."""
        return 0

    def synchronize(self) -> None:
        pass

    def release(self) -> None:
        """Release the memory that torch caches for later tensors."""

    def times(self, calls: Sequence[Call]) -> Times:
        """Times of one call. The calls differ in their memory alone, and are enqueued one after another, repeatedly."""
        seconds = []
        for call in calls:
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        return Times.of(seconds)

    def resources(self, folder: str, kernel: Kernel, launcher: Any) -> dict[str, int]:
        """Columns of a table: what a kernel that was launched takes of a multiprocessor."""
        return {}


class OnGpu(Host):
    """The first GPU."""

    device = "cuda"

    def __init__(self) -> None:
        torch.zeros(1, device="cuda")  # the context, which a CudaLauncher finds
        self.l2_bytes = int(torch.cuda.get_device_properties(0).L2_cache_size)

    def launcher(self) -> CudaLauncher:
        return CudaLauncher()

    def compile(self, kernels: Iterable[tuple[str, str]], launcher: CudaLauncher) -> None:
        with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
            # A failed compilation raises at the launch.
            wait([pool.submit(compile_kernel, *kernel, launcher.capability) for kernel in kernels])

    def stream(self) -> int:
        return int(torch.cuda.current_stream().cuda_stream)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def release(self) -> None:
        torch.cuda.empty_cache()

    def times(self, calls: Sequence[Call]) -> Times:
        # Kernels are compiled and loaded, and libraries have their workspaces, before anything is captured.
        calls[0]()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")  # a call that waits cannot be captured, and would spoil later captures
        try:
            calls[0]()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(3):  # also brings the clocks up
            graph.replay()
        torch.cuda.synchronize()
        replays = min(MOST, max(LEAST, int(MEASURED_S / ((time.perf_counter() - start) / 3))))
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(replays)]
        for before, after in events:
            before.record()
            graph.replay()
            after.record()
        torch.cuda.synchronize()
        seconds = [before.elapsed_time(after) / 1e3 / len(calls) for before, after in events]
        del graph
        self.release()
        return Times.of(seconds)

    def resources(self, folder: str, kernel: Kernel, launcher: CudaLauncher) -> dict[str, int]:
        function, driver, run = launcher._function(folder, kernel.name), launcher._driver, launcher._run
        attribute, fit = driver.CUfunction_attribute, driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
        return {
            "registers": run(driver.cuFuncGetAttribute, attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, function),
            "spilled bytes of a thread": run(
                driver.cuFuncGetAttribute, attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function
            ),
            "blocks a multiprocessor": run(fit, function, kernel.block, kernel.shared_bytes),
        }


def place_of(rehearse: bool) -> Host:
    """The GPU, or the host in a rehearsal. Raises SystemExit without a GPU outside a rehearsal."""
    if not rehearse and not torch.cuda.is_available():
        raise SystemExit("error: torch finds no GPU here; expected one, or --rehearse")
    return Host() if rehearse else OnGpu()
