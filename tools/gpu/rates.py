"""Section "rates" of gpu_check.py: bytes/s, FLOP/s, and the seconds of a launch, as measured on this GPU.

Every floor of the other sections comes from these rates: :class:`Rates`, :func:`measure_rates`. A copy counts the bytes
that it reads and those that it writes; a sum only reads. The products are of random numbers, since those of zeros draw
less power and run at higher clocks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tools.gpu._place import Host, OnGpu, Times, place_of
from tools.gpu._process import Found, tried

__all__ = ["RATES", "Rates", "measure_rates"]

RATES = "Rates of the floors, 1 a second"

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
BYTES = (2**26, 2**28, 2**30, 2**32)
SIZE = 8192
NODES = 1000
ROUNDINGS = 16
"""Error of a product that is let through, in roundings of its type, against the root mean square of the exact one."""


@dataclass(frozen=True)
class Rates:
    """``bytes_per_s``: the best of copying and reading. ``flops_per_s``: of a matrix product, two for each term."""

    bytes_per_s: float
    flops_per_s: float

    def floor_s(self, nbytes: float, flops: float) -> float:
        """The floor: seconds to move ``nbytes`` or to compute ``flops``, whichever is longer."""
        return max(nbytes / self.bytes_per_s, flops / self.flops_per_s)


def measure_rates(place: Host, dtype: torch.dtype) -> Rates:
    """Measure at one size that is long enough, in about a second; ``dtype``: of the products."""
    nbytes, size = _sizes(place)
    copied, _ = copy_rate(place, nbytes[-2])
    read, _ = read_rate(place, nbytes[-2])
    return Rates(max(copied, read), matrix_rate(place, dtype, size)[0])


def copy_rate(place: Host, nbytes: int) -> tuple[float, Times]:
    """Bytes a second, read and written, of a copy of ``nbytes`` on the device."""
    source = torch.randint(256, (nbytes,), dtype=torch.uint8, device=place.device)
    target = torch.zeros_like(source)
    target.copy_(source)
    if not torch.equal(source, target):
        raise RuntimeError("a copy differs from what was copied")
    times = place.times([lambda: target.copy_(source)] * _calls(nbytes))
    return 2 * nbytes / times.median_s, times


def read_rate(place: Host, nbytes: int) -> tuple[float, Times]:
    """Bytes a second of a sum over ``nbytes`` of float32."""
    numbers = torch.rand(nbytes // 4, device=place.device)
    total = torch.empty((), device=place.device)
    torch.sum(numbers, dim=0, out=total)
    mean = float(total) / len(numbers)
    if abs(mean - 0.5) > 6 / len(numbers) ** 0.5:
        raise RuntimeError(f"the mean of numbers below 1 is {mean}, expected 0.5")
    times = place.times([lambda: torch.sum(numbers, dim=0, out=total)] * _calls(nbytes))
    return nbytes / times.median_s, times


def matrix_rate(place: Host, dtype: torch.dtype, size: int) -> tuple[float, Times]:
    """FLOPs a second of torch.matmul of [size, size]; float32 is float32, without TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (torch.randn(size, size, dtype=dtype, device=place.device) for _ in range(2))
    c = torch.empty_like(a)
    torch.matmul(a, b, out=c)
    exact = a[:4].double() @ b.double()
    error = ((c[:4].double() - exact).square().mean() / exact.square().mean()).sqrt().item()
    if error > ROUNDINGS * torch.finfo(dtype).eps:
        raise RuntimeError(f"a product in {dtype} is off by {error:.2g} of its size")
    times = place.times([lambda: torch.matmul(a, b, out=c)] * 4)
    return 2 * size**3 / times.median_s, times


def launch_s(place: Host, launches: int) -> tuple[float, float]:
    """Seconds of one launch that adds 1 to one number: called by the host one after the other, and as a node of a
    CUDA graph."""
    number = torch.zeros(1, device=place.device)
    number.add_(1)
    place.synchronize()
    start = time.perf_counter()
    for _ in range(launches):
        number.add_(1)
    place.synchronize()
    by_host = (time.perf_counter() - start) / launches
    if number.item() != launches + 1:
        raise RuntimeError(f"{launches + 1} additions of 1 gave {number.item()}")
    return by_host, place.times([lambda: number.add_(1)] * launches).median_s


def _sizes(place: Host) -> tuple[tuple[int, ...], int]:
    return (BYTES, SIZE) if isinstance(place, OnGpu) else ((2**14, 2**16), 64)


def _calls(nbytes: int) -> int:
    return max(1, 2**30 // nbytes) if nbytes >= 2**20 else 2


def run(folder: str, rehearse: bool, seconds: float) -> Iterator[Found]:
    """Measure the rates; the last row of the table "Rates" has them in units of 1 a second."""
    place = place_of(rehearse)
    best: dict[str, float] = {}

    def memory(measure: Callable[[Host, int], tuple[float, Times]], count: int) -> dict[str, Any]:
        rate, times = measure(place, count)
        if count * 2 > 4 * place.l2_bytes:  # a rate of what stays near the multiprocessors is not one of the memory
            best["bytes"] = max(best.get("bytes", 0.0), rate)
        return {"TB/s": rate / 1e12, **times.cells()}

    def matrix(name: str) -> dict[str, Any]:
        best[name], times = matrix_rate(place, DTYPES[name], size)
        return {"TFLOP/s": best[name] / 1e12, **times.cells()}

    sizes, size = _sizes(place)
    for kind, measure in (("copy, read + written", copy_rate), ("read, a sum", read_rate)):
        for count in sizes:
            yield from tried("Memory", {"what": f"{kind}, {count / 2**20:g} MiB"}, partial(memory, measure, count))
    for name in DTYPES:
        yield from tried("Matrix products", {"what": f"{name} matmul, {size} x {size} x {size}"}, partial(matrix, name))
    yield RATES, best
    by_host, in_graph = launch_s(place, NODES if isinstance(place, OnGpu) else 20)
    for how, seconds_each in (("by the host", by_host), ("a node of a graph", in_graph)):
        yield "Launches", {"of a kernel that adds 1": how, "µs each": seconds_each * 1e6}
