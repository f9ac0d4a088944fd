"""The place where a section of the GPU check runs, and its clock: replays of CUDA graphs on a GPU; in a rehearsal the
host, where times mean nothing.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from tightbeam.plugins.tensorrt.compiler import compile_kernel
from tightbeam.plugins.tensorrt.launcher import CudaLauncher, Launcher
from tightbeam.plugins.tensorrt.native import Kernel
from tools.gpu._results import Results

__all__ = ["Call", "OnGpu", "OnHost", "Place", "Resources", "Times", "begin", "place_of"]

Call = Callable[[], object]
MEASURED_S = 0.2
"""Seconds of replays of one case, within the fewest and the most replays."""
LEAST, MOST = 20, 300
COMPILE = "import sys; from tightbeam.plugins.tensorrt.compiler import compile_kernel; compile_kernel(*sys.argv[1:])"
"""Compiles a kernel into the folder of compiled kernels."""


@dataclass(frozen=True)
class Times:
    """Seconds of one call: the median, and the tenth and ninetieth percentile. ``how``: "graph", "synchronised" (the
    host waits for each call, so its own work counts), or "host" in a rehearsal.
    """

    median_s: float
    low_s: float
    high_s: float
    how: str

    @classmethod
    def of(cls, seconds: Sequence[float], how: str) -> Times:
        ordered = sorted(seconds)
        last = len(ordered) - 1
        return cls(statistics.median(ordered), ordered[round(last * 0.1)], ordered[round(last * 0.9)], how)


@dataclass(frozen=True)
class Resources:
    """Resources of a compiled kernel. ``local_bytes``: spilled registers of a thread, in device memory. ``blocks``: of
    its launch that fit on a multiprocessor at once.
    """

    registers: int
    local_bytes: int
    blocks: int


class Place(Protocol):
    """``device``: torch's name. ``l2_bytes``: what may stay near the multiprocessors from one call to the next."""

    device: str
    l2_bytes: int

    def launcher(self) -> Launcher: ...

    def compile(self, kernels: Iterable[tuple[str, str]], launcher: Launcher) -> None:
        """Compile kernels, each given as operator folder and name, all at once; one alone takes seconds."""
        ...

    def stream(self) -> int:
        """The stream that torch enqueues on at this moment."""
        ...

    def synchronize(self) -> None: ...

    def release(self) -> None:
        """Release the memory that torch caches for later tensors."""
        ...

    def times(self, calls: Sequence[Call]) -> Times:
        """Times of one call. The calls differ in their memory alone, and are enqueued one after another, repeatedly."""
        ...

    def resources(self, folder: str, kernel: Kernel, launcher: Launcher) -> Resources | None: ...


def begin(output: Path, rehearse: bool) -> tuple[Place, Results]:
    """The place of a section and its results; SystemExit without a GPU, unless it is a rehearsal."""
    try:
        place = place_of(rehearse)
    except RuntimeError as error:
        raise SystemExit(f"error: {error}") from error
    output.parent.mkdir(parents=True, exist_ok=True)
    results = Results(output)
    if rehearse:
        results.note("A rehearsal on the host: no figure means anything.")
    return place, results


def place_of(rehearse: bool) -> Place:
    """The GPU, or the host in a rehearsal. Raises RuntimeError without a GPU outside a rehearsal."""
    if rehearse:
        return OnHost()
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no GPU here; expected one, or --rehearse")
    return OnGpu()


class OnGpu:
    """The first GPU."""

    device = "cuda"

    def __init__(self) -> None:
        torch.zeros(1, device="cuda")  # the context, which a CudaLauncher finds
        self.l2_bytes = int(torch.cuda.get_device_properties(0).L2_cache_size)

    def launcher(self) -> Launcher:
        return CudaLauncher()

    def compile(self, kernels: Iterable[tuple[str, str]], launcher: Launcher) -> None:
        assert isinstance(launcher, CudaLauncher)
        commands = [[sys.executable, "-c", COMPILE, *kernel, launcher.capability] for kernel in kernels]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            # A failed compilation raises at the launch.
            list(pool.map(lambda command: subprocess.run(command, check=False, capture_output=True), commands))

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
        if not self._is_asynchronous(calls[0]):
            return self._synchronised(calls)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for call in calls:
                    call()
        except RuntimeError as error:
            return self._synchronised(calls, f"synchronised, as the capture failed: {str(error).splitlines()[0]}")
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
        return Times.of(seconds, "graph")

    def _is_asynchronous(self, call: Call) -> bool:
        """True if the calls can be captured: a call that waits for the GPU cannot, and a failed capture may spoil
        later calls.
        """
        torch.cuda.set_sync_debug_mode("error")
        try:
            call()
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            return False
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return True

    def _synchronised(self, calls: Sequence[Call], how: str = "synchronised") -> Times:
        seconds: list[float] = []
        while len(seconds) < 5 or (sum(seconds) < MEASURED_S and len(seconds) < MOST):
            call = calls[len(seconds) % len(calls)]
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        return Times.of(seconds, how)

    def resources(self, folder: str, kernel: Kernel, launcher: Launcher) -> Resources | None:
        from cuda.bindings import driver

        def run(function: Any, *arguments: Any) -> Any:
            code, *results = function(*arguments)
            if code != driver.CUresult.CUDA_SUCCESS:
                raise RuntimeError(f"CUDA: {function.__name__} failed with {code.name}")
            return results[0] if results else None

        assert isinstance(launcher, CudaLauncher)
        compiled = compile_kernel(folder, kernel.name, launcher.capability)
        module = run(driver.cuModuleLoadData, compiled.cubin)
        function = run(driver.cuModuleGetFunction, module, compiled.symbol.encode())
        of = driver.CUfunction_attribute
        shared, most_shared = kernel.shared_bytes, of.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        run(driver.cuFuncSetAttribute, function, most_shared, shared)
        found = Resources(
            int(run(driver.cuFuncGetAttribute, of.CU_FUNC_ATTRIBUTE_NUM_REGS, function)),
            int(run(driver.cuFuncGetAttribute, of.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function)),
            int(run(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor, function, kernel.block, shared)),
        )
        run(driver.cuModuleUnload, module)
        return found


class OnHost:
    """A rehearsal: torch on the CPU, the host's clock. The tests derive a place from it that launches kernels."""

    device = "cpu"
    l2_bytes = 4096

    def launcher(self) -> Launcher:
        raise RuntimeError("the CUDA kernels need a GPU here; the tests run them on a host shim")

    def compile(self, kernels: Iterable[tuple[str, str]], launcher: Launcher) -> None:
        pass

    def stream(self) -> int:
        return 0

    def synchronize(self) -> None:
        pass

    def release(self) -> None:
        pass

    def times(self, calls: Sequence[Call]) -> Times:
        seconds = []
        for call in calls:
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        return Times.of(seconds, "host")

    def resources(self, folder: str, kernel: Kernel, launcher: Launcher) -> Resources | None:
        return None
