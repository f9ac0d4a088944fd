"""Our CUDA kernels on this GPU: their share of its measured rates, next to PyTorch's operators for the same work.

    python -m tools.gpu.kernels --output build/gpu/kernels.json

Every kernel is first checked, at a small size against the operator's definition in float64, at full size against
PyTorch in float64: its error may be twice that of the obvious PyTorch in the same precision. Nothing is timed before
it is checked, and what fails is not timed. A time is that of one call in the replay of a CUDA graph that holds many,
which take turns at as many sets of inputs as four times the L2 holds, since in a decoder the weights and caches of
other layers pass between two calls of one; workspaces stay, as they do in a decoder. The floor is what must move and be
multiplied (docstrings of attention.py and search.py of _kernels) at the rates measured in this run (rates.py); the
share of the roofline is the floor over the time.

Weak points, known from reading: the matrix kernels use mma.sync and cp.async, not Hopper's wgmma and bulk copies; each
tile of states goes through three barriers of the whole block; two blocks read a sample's states (32 queries each), the
second at best from L2; a multiprocessor holds one block of LatentAttention, whose kernel for BART-large spills (ptxas
13.0 for sm_90: 128 registers, 240 bytes of stores). NGramBlock moves so little that a launch should be longer. The
predictions in `works` were made from this before anything was measured, and before the machine code was counted, which
allows other shares: docs/explanation/cuda-kernels.md has both.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.tensorrt.errors import TensorRTError
from tightbeam.plugins.tensorrt.native import Gpu, Kernel
from tools.gpu._graph_times import OnGpu, Place, Times, begin
from tools.gpu._kernels.attention import BeamLatentWork, BeamWork, LatentWork, SourceWork
from tools.gpu._kernels.search import NGramWork, TopKWork, TrieTopKWork
from tools.gpu._kernels.work import Operator, Peer, Tensors, Work, as_case, as_doubles, copies
from tools.gpu._results import Results, skip
from tools.gpu.rates import Rates, measure_rates

__all__ = ["Found", "RecordingLauncher", "compare", "run", "works"]

MOST_SETS, LEAST_CALLS = 128, 16
L2_TIMES = 4
TIMES_NAIVE, UNITS, LUCK = 2, 4, 5
"""The error may be twice the obvious way's, or four units of float32's last place; the largest one is a matter of luck,
and may be five times that."""
LARGEST_ERROR = 0.05
"""Largest accepted error of the obvious PyTorch, relative to the root mean square of the exact numbers: beyond it the
comparison itself is wrong."""
TARGET = {"LatentAttention": 70}
"""Percent of the roofline."""
PREDICTION = (
    "The shares that are called predicted were written down before anything was measured. LatentAttention was expected "
    "to miss its target: its floor is the bytes of the states, while its products run through mma.sync between three "
    "barriers a tile. Where a search shares most of a history, BeamAttention was expected to wait for L2, which serves "
    "each beam again. NGramBlock was expected to be a launch and little else."
)
COLUMNS = (
    *("sizes", "type", "what", "time, µs", "10th to 90th percentile", "roofline, %", "predicted, %", "TB/s"),
    *("TFLOP/s", "time over ours", "how"),
)


def works(place: Place) -> Iterator[tuple[Work, Work]]:
    """Each work at full size, and at a small one that starts the same kernels for the definition in numpy."""
    gpu = isinstance(place, OnGpu)
    fp16, bf16 = torch.float16, torch.bfloat16
    heads: dict[str, Any] = dict(M=4, H=16, K=64) if gpu else dict(M=2, H=2, K=16)
    few: dict[str, Any] = dict(M=5, H=4, K=16)
    batches = (32, 128, 320) if gpu else (2,)
    N, T, vocabulary = (1024, 60, 50265) if gpu else (40, 9, 700)
    no_share = (0, 0)
    at = place.device

    def kinds() -> Iterator[tuple[int, torch.dtype]]:
        yield from ((B, fp16) for B in batches)
        yield batches[len(batches) // 2], bf16

    for B, kind in kinds():
        yield SourceWork(B, kind, at, (65, 85), N=N, **heads), SourceWork(5, kind, at, no_share, N=70, **few)
    for B, kind in kinds():
        yield LatentWork(B, kind, at, (40, 55), N=N, **heads), LatentWork(5, kind, at, no_share, N=70, **few)
    for shared in (True, False):
        long: dict[str, Any] = dict(T=T, T_max=T + 4, shared=shared)
        short: dict[str, Any] = dict(T=20, T_max=25, shared=shared)
        for B, kind in kinds():
            share = (15, 40) if shared else (40, 75)
            yield BeamWork(B, kind, at, share, **heads, **long), BeamWork(5, kind, at, no_share, **few, **short)
    for by_head in (False, True):
        H, K = heads["H"], heads["K"]
        large: dict[str, Any] = dict(M=heads["M"], H=H, G=H if by_head else 1, K=K if by_head else H * K)
        small: dict[str, Any] = dict(M=3, H=4, G=4 if by_head else 1, K=16 if by_head else 64)
        for B, kind in kinds():
            yield (
                BeamLatentWork(B, kind, at, (10, 40), **large, T=T, T_max=T + 4, shared=True),
                BeamLatentWork(5, kind, at, no_share, **small, T=20, T_max=25, shared=True),
            )
    for B in batches:
        yield (
            TopKWork(B, fp16, at, (40, 75), M=heads["M"], T=T, vocabulary=vocabulary),
            TopKWork(5, fp16, at, no_share, M=3, T=20, vocabulary=300),
        )
    B = batches[0]
    yield (
        TrieTopKWork(B, fp16, at, (40, 75), M=heads["M"], T=T, vocabulary=vocabulary, children=min(64, vocabulary)),
        TrieTopKWork(5, fp16, at, no_share, M=3, T=20, vocabulary=300, children=4),
    )
    for rows, tokens, share in ((1280, 142, (5, 25)), (32, 4000, (1, 10))) if gpu else ((6, 30, no_share),):
        yield (
            NGramWork(rows, fp16, at, share, T=tokens, vocabulary=vocabulary, n=3),
            NGramWork(7, fp16, at, no_share, T=30, vocabulary=300, n=3),
        )


@dataclass(frozen=True)
class Found:
    """Error of a result and its bound: the root mean square, and the largest one, which reveals a few wrong numbers
    among millions. Infinite if the result has other infinities or NaN.
    """

    error: float
    allowed: float
    largest: float
    largest_allowed: float

    @property
    def right(self) -> bool:
        return self.error <= self.allowed and self.largest <= self.largest_allowed


def compare(found: torch.Tensor, exact: torch.Tensor, naive: torch.Tensor) -> Found:
    """Compare the finite numbers. ``naive``: the obvious computation in the precision of ``found``.

    Raises RuntimeError if the obvious way itself is not near the exact numbers.
    """
    finite = exact.isfinite()
    truth = exact[finite]
    difference, size = naive[finite] - truth, _rms(truth)
    if not torch.equal(naive[~finite], exact[~finite]) or not _rms(difference) <= LARGEST_ERROR * size:
        raise RuntimeError(f"PyTorch itself is off by {_rms(difference):.3g} of numbers of size {size:.3g}")
    least = UNITS * torch.finfo(torch.float32).eps * max(1.0, float(truth.abs().max()))
    allowed = max(TIMES_NAIVE * _rms(difference), least)
    largest_allowed = LUCK * max(float(difference.abs().max()), least)
    difference = found[finite] - truth
    if not torch.equal(found[~finite], exact[~finite]) or not difference.isfinite().all():
        return Found(math.inf, allowed, math.inf, largest_allowed)
    return Found(_rms(difference), allowed, float(difference.abs().max()), largest_allowed)


def _rms(difference: torch.Tensor) -> float:
    return float(difference.square().mean().sqrt())


class RecordingLauncher:
    """A launcher that records kernels in place of starting them. ``kernels``: folder and name of each."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.kernels: set[tuple[str, str]] = set()

    def launch(self, folder: str, kernel: Kernel, stream: int) -> None:
        self.kernels.add((folder, kernel.name))


class Section:
    """Checks and times the works of this run, one after another."""

    def __init__(self, place: Place, results: Results) -> None:
        self.place, self.results = place, results
        self.launcher = place.launcher()
        self.rates: dict[str, Rates] = {}
        self.times: dict[tuple[int, str, str], Times] = {}
        """Batch, type and peer -> times of SourceAttention's peers, which LatentAttention competes with."""
        self.wrong: list[str] = []
        self.failed: list[str] = []
        results.figure("wrong", self.wrong)
        results.figure("failed", self.failed)

    def run(self, full: Work, small: Work) -> None:
        """Check and time; a failure is a note and a row."""
        name = f"{full.operator}, {full.label}, {full.dtype_name}"
        print(name, flush=True)
        try:
            if self._check_definition(name, small) and self._check_full_size(name, full):
                self._time(name, full)
            self.place.release()
        except Exception as error:
            self.failed.append(name)
            self.results.figure("failed", self.failed)
            self._failed(full, "ours", error)

    def _check_definition(self, name: str, small: Work) -> bool:
        """Compare with the operator's own definition in numpy."""
        inputs = small.inputs(1, odd=True)
        module = importlib.import_module(f"tightbeam.plugins.ops.{OPERATORS[small.operator].folder}.cases")
        case, outputs = as_case(small, inputs), small.outputs(inputs)
        if small.operator == "BeamTopK":
            case.inputs["candidates"] = np.array([outputs["scores"].shape[1]])
        defined = torch.from_numpy(np.array(module.exact(case)[next(iter(outputs))])).double().reshape(-1)
        naive = next(iter(small.peers().values()))
        exact = _by(naive, small, as_doubles(inputs))
        in_torch = exact.reshape(-1)[: len(defined)].cpu()
        if not torch.allclose(in_torch, defined, rtol=1e-9, atol=1e-9):
            raise RuntimeError("PyTorch in float64 and the operator's definition differ")
        ours = _by(self._operator(small), small, inputs)
        return self._note_check(name, f"definition: {small.label}", compare(ours, exact, _by(naive, small, inputs)))

    def _check_full_size(self, name: str, full: Work) -> bool:
        naive = next(iter(full.peers().values()))
        right = True
        for odd in (True, False):
            inputs = full.inputs(2, odd=odd)
            found = compare(
                _by(self._operator(full), full, inputs),
                _by(naive, full, as_doubles(inputs)),
                _by(naive, full, inputs),
            )
            right = self._note_check(name, "full size, odd lengths" if odd else "full size", found) and right
        return right

    def _note_check(self, name: str, against: str, found: Found) -> bool:
        verdict = "right" if found.right else "WRONG"
        columns = ("call", "against float64", "error", "allowed", "largest", "largest allowed", "verdict")
        numbers = (found.error, found.allowed, found.largest, found.largest_allowed)
        self.results.row("Checks", columns, (name, against, *(f"{number:.3g}" for number in numbers), verdict))
        if not found.right:
            self.wrong.append(f"{name}: {against}")
            self.results.figure("wrong", self.wrong)
            self.results.note(f"{name}: WRONG against {against}: {found}")
        return found.right

    def _operator(self, work: Work) -> Peer:
        """Our operator, called like a peer."""
        operator = Operator(work, self.place, self.launcher)

        def call(inputs: Tensors) -> Tensors:
            outputs = work.outputs(inputs)
            operator(inputs, outputs)
            self.place.synchronize()
            return outputs

        return call

    def _time(self, name: str, work: Work) -> None:
        kind = {"float16": "fp16", "bfloat16": "bf16"}[work.dtype_name]
        if kind not in self.rates:
            self.rates[kind] = measure_rates(self.place, kind)
            self.results.figure(f"bytes_per_s_{kind}", self.rates[kind].bytes_per_s)
            self.results.figure(f"flops_per_s_{kind}", self.rates[kind].flops_per_s)
        first = work.inputs(3)
        nbytes, flops = work.bytes_moved(first), work.flops(first)
        floor_s = self.rates[kind].floor_s(nbytes, flops)
        count = min(MOST_SETS, max(2, -(-L2_TIMES * self.place.l2_bytes // nbytes)))
        sets = [first, *(work.inputs(4 + index) for index in range(count - 1))]
        rounds = -(-LEAST_CALLS // count)

        operator, outputs = Operator(work, self.place, self.launcher), [work.outputs(inputs) for inputs in sets]
        self._note_resources(name, operator, operator(sets[0], outputs[0]))
        ours = self.place.times([partial(operator, *pair) for pair in zip(sets, outputs, strict=True)] * rounds)
        share = 100 * floor_s / ours.median_s
        figure = {"ours_s": ours.median_s, "floor_s": floor_s, "bytes": nbytes, "flops": flops, "sets": count}
        peers: dict[str, float] = {}
        self._row(work, "ours", ours, ours, floor_s, nbytes, flops)
        self.results.row(work.operator, COLUMNS, (*_named(work), "floor", f"{floor_s * 1e6:.1f}", *[""] * 7))
        for peer, call in work.peers().items():
            try:
                found = self._time_peer(work, call, sets, rounds)
            except Exception as error:
                self._failed(work, peer, error)
                continue
            peers[peer] = found.median_s
            if isinstance(work, SourceWork):
                self.times[work.B, kind, peer] = found
            self._row(work, peer, found, ours, floor_s, nbytes, flops)
        if isinstance(work, LatentWork):
            for (B, other, peer), found in self.times.items():
                if (B, other) == (work.B, kind) and "SDPA" in peer:
                    peers[peer] = found.median_s
                    self._row(work, peer, found, ours)
        self.results.figure(name, {**figure, "share_percent": share, "predicted": work.predicted, "peers": peers})
        low, high = work.predicted
        if self.place.device == "cuda" and not low <= share <= high:
            self.results.note(f"{name}: {share:.0f} % of the roofline, predicted {low} to {high} %.")
        target = TARGET.get(work.operator)
        if target is not None and share < target:
            self.results.note(f"{name}: {share:.0f} % of the roofline misses the target of {target} %.")

    def _time_peer(self, work: Work, call: Peer, sets: list[Tensors], rounds: int) -> Times:
        """Times of a peer. Raises RuntimeError if its result is wrong."""
        naive = next(iter(work.peers().values()))
        inputs = work.inputs(2)
        if call is not naive:
            exact = _by(naive, work, as_doubles(inputs))
            found = compare(_by(call, work, inputs), exact, _by(naive, work, inputs))
            if not found.right:
                raise RuntimeError(f"wrong: {found}")
            del exact
        return self.place.times([partial(call, inputs) for inputs in sets] * rounds)

    def _row(
        self,
        work: Work,
        what: str,
        times: Times,
        ours: Times,
        floor_s: float | None = None,
        nbytes: int = 0,
        flops: int = 0,
    ) -> None:
        """Add a row, without a floor if the peer does different work."""
        seconds = times.median_s
        predicted = f"{work.predicted[0]} to {work.predicted[1]}" if what == "ours" else ""
        rates = ("", "", "", "")
        if floor_s is not None:
            share, moved, multiplied = 100 * floor_s / seconds, nbytes / seconds / 1e12, flops / seconds / 1e12
            rates = (f"{share:.1f}", predicted, f"{moved:.2f}", f"{multiplied:.1f}")
        spread = f"{times.low_s * 1e6:.1f} to {times.high_s * 1e6:.1f}"
        ratio = f"{seconds / ours.median_s:.2f}"
        cells = (*_named(work), what, f"{seconds * 1e6:.1f}", spread, *rates, ratio, times.how)
        self.results.row(work.operator, COLUMNS, cells)

    def _failed(self, work: Work, what: str, error: Exception) -> None:
        self.results.row(work.operator, COLUMNS, (*_named(work), what, "failed", *[""] * 7))
        text = str(error).splitlines()[0] if str(error) else ""
        self.results.note(f"{work.operator}, {work.label}, {work.dtype_name}, {what}: {type(error).__name__}: {text}")

    def _note_resources(self, name: str, operator: Operator, kernels: Sequence[Kernel]) -> None:
        columns = (
            *("call", "kernel", "grid", "block", "shared bytes", "registers", "spilled bytes of a thread"),
            "blocks a multiprocessor",
        )
        for kernel in kernels:
            found = self.place.resources(operator.operator.folder, kernel, self.launcher)
            given = ("", "", "") if found is None else (found.registers, found.local_bytes, found.blocks)
            cells = (name, kernel.name.removeprefix("tightbeam::device::"), kernel.grid, kernel.block)
            self.results.row("Kernels", columns, (*cells, kernel.shared_bytes, *given))


def _named(work: Work) -> tuple[str, str]:
    return work.label, work.dtype_name


def _by(call: Peer, work: Work, inputs: Tensors) -> torch.Tensor:
    """Numbers to compare; ``inputs`` are not changed."""
    own = copies(inputs)
    outputs = call(own)
    return work.result(own, outputs)


def run(place: Place, results: Results) -> list[str]:
    """Check and time everything; the calls whose results are wrong, and those that raised something."""
    section = Section(place, results)
    noting = RecordingLauncher(section.launcher.gpu)
    for _, small in works(place):
        with suppress(Exception):  # the call raises again, and is noted there
            inputs = small.inputs(0)
            Operator(small, place, noting)(inputs, small.outputs(inputs))
    place.compile(sorted(noting.kernels), section.launcher)
    for full, small in works(place):
        section.run(full, small)
    return [*section.wrong, *section.failed]


def main(
    output: Annotated[Path, typer.Option(help="File for the results.")],
    rehearse: Annotated[bool, typer.Option(help="Without a GPU: skip the section.")] = False,
) -> None:
    """Check and time the kernels; the exit code is 1 if a result is wrong or a call failed."""
    place, results = begin(output, rehearse)
    if rehearse:
        skip("the kernels need a GPU; tests/tools/test_gpu_kernels.py rehearses this section on a host shim")
    results.note(PREDICTION)
    try:
        bad = run(place, results)
    except TensorRTError as error:  # nothing can be planned or started
        results.note(f"No kernel ran: {error}")
        raise SystemExit(f"error: {error}") from error
    if bad:
        raise SystemExit(f"error: {len(bad)} calls are wrong or failed: {', '.join(bad)}")


if __name__ == "__main__":
    typer.run(main)
