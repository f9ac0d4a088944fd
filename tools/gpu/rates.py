"""Measured rates of this GPU: bytes/s, FLOP/s, and the seconds of a launch.

    python -m tools.gpu.rates --output build/gpu/rates.json

Every floor of the other sections comes from these rates: :class:`Rates`, :func:`measure_rates`. A copy counts the bytes
that it reads and those that it writes; a sum only reads. The products are of random numbers, since those of zeros draw
less power and run at higher clocks. ``--rehearse`` runs the same on a machine without a GPU, at tiny sizes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

from tools.gpu._graph_times import OnGpu, Place, Times, begin

__all__ = ["DTYPES", "Rates", "measure_rates"]

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


def measure_rates(place: Place, dtype: str) -> Rates:
    """Measure at one size that is long enough, in about a second; ``dtype``: a name of DTYPES, of the products."""
    nbytes, size = _sizes(place)
    copied, _ = copy_rate(place, nbytes[-2])
    read, _ = read_rate(place, nbytes[-2])
    return Rates(max(copied, read), matrix_rate(place, DTYPES[dtype], size)[0])


def copy_rate(place: Place, nbytes: int) -> tuple[float, Times]:
    """Bytes a second, read and written, of a copy of ``nbytes`` on the device."""
    source = torch.randint(256, (nbytes,), dtype=torch.uint8, device=place.device)
    target = torch.zeros_like(source)
    target.copy_(source)
    if not torch.equal(source, target):
        raise RuntimeError("a copy differs from what was copied")
    times = place.times([lambda: target.copy_(source)] * _calls(nbytes))
    return 2 * nbytes / times.median_s, times


def read_rate(place: Place, nbytes: int) -> tuple[float, Times]:
    """Bytes a second of a sum over ``nbytes`` of float32."""
    numbers = torch.rand(nbytes // 4, device=place.device)
    total = torch.empty((), device=place.device)
    torch.sum(numbers, dim=0, out=total)
    mean = float(total) / len(numbers)
    if abs(mean - 0.5) > 6 / len(numbers) ** 0.5:
        raise RuntimeError(f"the mean of numbers below 1 is {mean}, expected 0.5")
    times = place.times([lambda: torch.sum(numbers, dim=0, out=total)] * _calls(nbytes))
    return nbytes / times.median_s, times


def matrix_rate(place: Place, dtype: torch.dtype, size: int) -> tuple[float, Times]:
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


def launch_s(place: Place, launches: int) -> tuple[float, float]:
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


def _sizes(place: Place) -> tuple[tuple[int, ...], int]:
    return (BYTES, SIZE) if isinstance(place, OnGpu) else ((2**14, 2**16), 64)


def _calls(nbytes: int) -> int:
    return max(1, 2**30 // nbytes) if nbytes >= 2**20 else 2


def main(
    output: Annotated[Path, typer.Option(help="File for the results.")],
    rehearse: Annotated[bool, typer.Option(help="Run at tiny sizes on the host; times mean nothing.")] = False,
) -> None:
    """Measure and write the rates."""
    place, results = begin(output, rehearse)
    nbytes, size = _sizes(place)
    best: dict[str, float] = {}
    columns = ("what", "rate", "time, µs", "10th to 90th percentile, µs")
    for kind, measure in (("copy, read + written", copy_rate), ("read, a sum", read_rate)):
        for count in nbytes:
            what = f"{kind}, {count / 2**20:g} MiB"
            try:
                rate, times = measure(place, count)
            except Exception as error:
                results.row("Memory", columns, (what, "failed", "", ""))
                results.note(f"{what}: {type(error).__name__}: {error}")
                continue
            # A rate of what stays near the multiprocessors is not one of the memory.
            if count * 2 > 4 * place.l2_bytes:
                best[kind] = max(best.get(kind, 0.0), rate)
            results.row("Memory", columns, (what, f"{rate / 1e12:.3f} TB/s", *_printed(times)))
    if best:
        results.figure("bytes_per_s", max(best.values()))
    for name, dtype in DTYPES.items():
        what = f"{name} matmul, {size} x {size} x {size}"
        try:
            rate, times = matrix_rate(place, dtype, size)
        except Exception as error:
            results.row("Matrix products", columns, (what, "failed", "", ""))
            results.note(f"{what}: {type(error).__name__}: {error}")
            continue
        results.figure(f"flops_per_s_{name}", rate)
        results.row("Matrix products", columns, (what, f"{rate / 1e12:.1f} TFLOP/s", *_printed(times)))
    try:
        by_host, in_graph = launch_s(place, NODES if isinstance(place, OnGpu) else 20)
    except Exception as error:
        results.note(f"launches: {type(error).__name__}: {error}")
    else:
        results.figure("launch_by_host_s", by_host)
        results.figure("launch_in_graph_s", in_graph)
        results.row("Launches", ("of a kernel that adds 1", "µs each"), ("by the host", f"{by_host * 1e6:.2f}"))
        results.row("Launches", ("of a kernel that adds 1", "µs each"), ("a node of a graph", f"{in_graph * 1e6:.2f}"))


def _printed(times: Times) -> tuple[str, str]:
    return f"{times.median_s * 1e6:.1f}", f"{times.low_s * 1e6:.1f} to {times.high_s * 1e6:.1f}"


if __name__ == "__main__":
    typer.run(main)
