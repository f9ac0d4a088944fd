"""Section "kernels": our CUDA kernels' share of this GPU's measured rates, next to PyTorch's operators for their work.

Every kernel is first checked, at a small size against the operator's definition in float64, at full size against
PyTorch in float64: its error may be twice that of the obvious PyTorch in the same precision. Nothing is timed before
it is checked, and what fails is not timed. A time is that of one call in the replay of a CUDA graph that holds many,
which take turns at as many sets of inputs as four times the L2 holds, since in a decoder the weights and caches of
other layers pass between two calls of one; workspaces stay, as they do in a decoder. The floor is what must move and be
multiplied (docstrings of attention.py and search.py of _kernels) at the rates measured in this run (rates.py); the
share of the roofline is the floor over the time.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.tensorrt.native import Gpu, Kernel
from tools.gpu._kernels.attention import BeamLatentWork, BeamWork, LatentWork, SourceWork
from tools.gpu._kernels.search import NGramWork, TopKWork, TrieTopKWork
from tools.gpu._kernels.work import Operator, Peer, Tensors, Work, as_case, as_doubles
from tools.gpu._place import Host, OnGpu, Times, place_of
from tools.gpu._process import Found, Row, failed
from tools.gpu._report import RIGHT
from tools.gpu.rates import Rates, measure_rates

__all__ = ["Error", "RecordingLauncher", "compare", "measure", "works"]

MOST_SETS, LEAST_CALLS = 128, 16
L2_TIMES = 4
TIMES_NAIVE, UNITS, LUCK = 2, 4, 5
"""The error may be twice the obvious way's, or four units of float32's last place; the largest one is a matter of luck,
and may be five times that."""
LARGEST_ERROR = 0.05
"""Largest accepted error of the obvious PyTorch, relative to the root mean square of the exact numbers: beyond it the
comparison itself is wrong."""


def works(place: Host) -> Iterator[tuple[Work, Work]]:
    """Each work at full size, and at a small one that starts the same kernels for the definition in numpy."""
    gpu = isinstance(place, OnGpu)
    fp16, bf16 = torch.float16, torch.bfloat16
    heads: dict[str, Any] = dict(M=4, H=16, K=64) if gpu else dict(M=2, H=2, K=16)
    few: dict[str, Any] = dict(M=5, H=4, K=16)
    batches = (32, 128, 320) if gpu else (2,)
    N, T, vocabulary = (1024, 60, 50265) if gpu else (40, 9, 700)
    at = place.device
    kinds = [*((B, fp16) for B in batches), (batches[len(batches) // 2], bf16)]
    for B, kind in kinds:
        yield SourceWork(B, kind, at, N=N, **heads), SourceWork(5, kind, at, N=70, **few)
    for B, kind in kinds:
        yield LatentWork(B, kind, at, N=N, **heads), LatentWork(5, kind, at, N=70, **few)
    for shared in (True, False):
        long: dict[str, Any] = dict(T=T, T_max=T + 4, shared=shared)
        short: dict[str, Any] = dict(T=20, T_max=25, shared=shared)
        for B, kind in kinds:
            yield BeamWork(B, kind, at, **heads, **long), BeamWork(5, kind, at, **few, **short)
    for by_head in (False, True):
        M, H, K = heads.values()
        large: dict[str, Any] = dict(M=M, H=H, G=H if by_head else 1, K=K if by_head else H * K)
        small: dict[str, Any] = dict(M=3, H=4, G=4 if by_head else 1, K=16 if by_head else 64)
        for B, kind in kinds:
            yield (
                BeamLatentWork(B, kind, at, **large, T=T, T_max=T + 4, shared=True),
                BeamLatentWork(5, kind, at, **small, T=20, T_max=25, shared=True),
            )
    sizes, few = dict(M=heads["M"], T=T, vocabulary=vocabulary), dict(M=3, T=20, vocabulary=300)
    for B in batches:
        yield TopKWork(B, fp16, at, **sizes), TopKWork(5, fp16, at, **few)
    yield TrieTopKWork(batches[0], fp16, at, **sizes, children=64), TrieTopKWork(5, fp16, at, **few, children=4)
    for rows, tokens in ((1280, 142), (32, 4000)) if gpu else ((6, 30),):
        yield (
            NGramWork(rows, fp16, at, T=tokens, vocabulary=vocabulary, n=3),
            NGramWork(7, fp16, at, T=30, vocabulary=300, n=3),
        )


@dataclass(frozen=True)
class Error:
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


def compare(found: torch.Tensor, exact: torch.Tensor, naive: torch.Tensor) -> Error:
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
        return Error(math.inf, allowed, math.inf, largest_allowed)
    return Error(_rms(difference), allowed, float(difference.abs().max()), largest_allowed)


def _rms(difference: torch.Tensor) -> float:
    return float(difference.square().mean().sqrt())


class RecordingLauncher:
    """A launcher that records kernels in place of starting them. ``kernels``: folder and name of each."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.kernels: set[tuple[str, str]] = set()

    def launch(self, folder: str, kernel: Kernel, stream: int) -> None:
        self.kernels.add((folder, kernel.name))


def run(folder: str, rehearse: bool, seconds: float) -> Iterator[Found]:
    """Check and time the kernels."""
    if rehearse:
        raise SystemExit(
            "skipped: the kernels need a GPU; tests/tools/test_gpu_kernels.py rehearses this section on a host shim"
        )
    yield from measure(place_of(rehearse))


def measure(place: Host) -> Iterator[Found]:
    """Check and time everything. Raises SystemExit at the end if a result is wrong or a call failed."""
    launcher = place.launcher()
    recording = RecordingLauncher(launcher.gpu)
    for _, small in works(place):
        with suppress(Exception):  # the call raises again, and is reported there
            inputs = small.inputs(0)
            Operator(small, place, recording)(inputs, small.outputs(inputs))
    place.compile(sorted(recording.kernels), launcher)
    rates: dict[str, Rates] = {}
    masked: dict[tuple[int, str], dict[str, Times]] = {}
    """Batch and type -> times of SourceAttention's SDPA, which LatentAttention competes with."""
    bad = []
    for full, small in works(place):
        name = f"{full.operator}, {full.label}, {full.dtype_name}"
        print(name, flush=True)
        try:
            wrong = False
            for against, error in checks(full, small, place, launcher):
                wrong |= not error.right
                yield "Checks", {"call": name, "against float64": against, **vars(error), RIGHT: error.right}
            if not wrong:
                kind = full.dtype_name
                if kind not in rates:
                    rates[kind] = measure_rates(place, full.dtype)
                yield from timed(full, place, launcher, rates[kind], masked.setdefault((full.B, kind), {}))
            place.release()
        except Exception as error:
            wrong = True
            yield full.operator, {**_named(full), "what": "ours", **failed(error)}
        if wrong:
            bad.append(name)
    if bad:
        raise SystemExit(f"error: {len(bad)} calls are wrong or failed: {'; '.join(bad)}")


def checks(full: Work, small: Work, place: Host, launcher: Any) -> Iterator[tuple[str, Error]]:
    """Compare with the operator's own definition in numpy, then at full size."""
    inputs = small.inputs(1, odd=True)
    module = importlib.import_module(f"tightbeam.plugins.ops.{OPERATORS[small.operator].folder}.cases")
    case, outputs = as_case(small, inputs), small.outputs(inputs)
    if small.operator == "BeamTopK":
        case.inputs["candidates"] = np.array([outputs["scores"].shape[1]])
    defined = torch.from_numpy(np.array(module.exact(case)[next(iter(outputs))])).double().reshape(-1)
    in_torch = _by(_obvious(small), small, as_doubles(inputs)).reshape(-1)[: len(defined)].cpu()
    if not torch.allclose(in_torch, defined, rtol=1e-9, atol=1e-9):
        raise RuntimeError("PyTorch in float64 and the operator's definition differ")
    yield f"definition: {small.label}", _error(_ours(small, place, launcher), small, inputs)
    for odd in (True, False):
        inputs = full.inputs(2, odd=odd)
        label = "full size, odd lengths" if odd else "full size"
        yield label, _error(_ours(full, place, launcher), full, inputs)


def _obvious(work: Work) -> Peer:
    return next(iter(work.peers().values()))


def _error(call: Peer, work: Work, inputs: Tensors) -> Error:
    obvious = _obvious(work)
    return compare(_by(call, work, inputs), _by(obvious, work, as_doubles(inputs)), _by(obvious, work, inputs))


def _by(call: Peer, work: Work, inputs: Tensors) -> torch.Tensor:
    """Numbers to compare; ``inputs`` are not changed."""
    own = {name: tensor.clone() for name, tensor in inputs.items()}
    return work.result(own, call(own))


def _ours(work: Work, place: Host, launcher: Any) -> Peer:
    """Our operator, called like a peer."""
    operator = Operator(work, place, launcher)

    def call(inputs: Tensors) -> Tensors:
        outputs = work.outputs(inputs)
        operator(inputs, outputs)
        place.synchronize()
        return outputs

    return call


def timed(work: Work, place: Host, launcher: Any, rates: Rates, masked: dict[str, Times]) -> Iterator[Found]:
    """Rows of our kernels, of the floor, and of PyTorch."""
    first = work.inputs(3)
    nbytes, flops = work.bytes_moved(first), work.flops(first)
    floor_s = rates.floor_s(nbytes, flops)
    count = min(MOST_SETS, max(2, -(-L2_TIMES * place.l2_bytes // nbytes)))
    sets = [first, *(work.inputs(4 + index) for index in range(count - 1))]
    rounds = -(-LEAST_CALLS // count)

    operator, outputs = Operator(work, place, launcher), [work.outputs(inputs) for inputs in sets]
    for kernel in operator(sets[0], outputs[0]):
        called = {**_named(work), "kernel": kernel.name.removeprefix("tightbeam::device::")}
        launch = {"grid": str(kernel.grid), "block": kernel.block, "shared bytes": kernel.shared_bytes}
        yield "Kernels", {**called, **launch, **place.resources(operator.folder, kernel, launcher)}
    ours = place.times([partial(operator, *pair) for pair in zip(sets, outputs, strict=True)] * rounds)

    def row(what: str, times: Times, *, same_work: bool = True) -> Row:
        per_us = {"roofline, %": 100 * floor_s, "TB/s": nbytes / 1e12, "TFLOP/s": flops / 1e12}
        found = {name: f"{value / times.median_s:.2f}" for name, value in per_us.items()} if same_work else {}
        ratio = f"{times.median_s / ours.median_s:.2f}"
        return work.operator, {**_named(work), "what": what, **times.cells(), **found, "time over ours": ratio}

    yield row("ours", ours)
    yield work.operator, {**_named(work), "what": "floor", "time, µs": f"{floor_s * 1e6:.1f}"}
    for peer, call in work.peers().items():
        try:
            if not (error := _error(call, work, work.inputs(2))).right:
                raise RuntimeError(f"wrong: {error}")
            times = place.times([partial(call, inputs) for inputs in sets] * rounds)
        except Exception as error:
            yield work.operator, {**_named(work), "what": peer, **failed(error)}
            continue
        if isinstance(work, SourceWork) and "SDPA" in peer:
            masked[peer] = times
        yield row(peer, times)
    if isinstance(work, LatentWork):
        for peer, times in masked.items():
            yield row(peer, times, same_work=False)


def _named(work: Work) -> dict[str, Any]:
    return {"sizes": work.label, "type": work.dtype_name}
