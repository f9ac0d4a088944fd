"""Section "step" of gpu_check.py: a decode step on ONNX Runtime's CUDA provider, as a profile shows it.

Copies between host and GPU must be the small inputs and [B, C] candidates alone; with a CUDA graph the GPU must not
wait between kernels. The report lists the nodes that ONNX Runtime placed on the CPU. The bundles are those of the
section "generate".
"""

from __future__ import annotations

import json
import statistics
import tempfile
import timeit
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tightbeam.deploy import Bundle
from tightbeam.deploy.runtimes.base import Decoding
from tightbeam.deploy.runtimes.onnxruntime_cuda import OnnxRuntimeCuda, load_onnxruntime_cuda, placement
from tools.gpu._generate.case import source_ids
from tools.gpu._generate.make import VARIANTS, bundle_folder
from tools.gpu._process import Found, Row, failed, tried

BATCHES, SOURCE, TOKENS, PRECISION = (32, 128), 1024, 30, "fp16"
BEAMS, PROFILED, ROUNDS = 4, 10, 20
CANDIDATE_BYTES = 4 + 8 + 8
"""A score, a beam and a token."""
WRONG = "wrong"
"""Column of what a step does and should not."""


@dataclass(frozen=True)
class Event:
    """One event of the GPU. ``kind``: kernel, memset, or HtoD, DtoH, DtoD, or another copy; ``begin_us`` and ``us``: of
    one clock; ``nbytes``: copied.
    """

    kind: str
    begin_us: float
    us: float
    nbytes: int


Profiler = Callable[[Callable[[], object]], list[Event]]
"""Returns the GPU's events while a function runs."""


def profile(work: Callable[[], object]) -> list[Event]:
    """Profile with torch's profiler, through CUPTI, which covers the whole process."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        return events_of(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])


def events_of(trace: Iterable[Mapping[str, Any]]) -> list[Event]:
    """The GPU's events of a Chrome trace."""
    kinds = {"kernel": "kernel", "gpu_memset": "memset", "gpu_memcpy": ""}
    events = []
    for event in trace:
        if event.get("cat") in kinds:
            kind = kinds[event["cat"]] or event["name"].split()[1]  # Memcpy HtoD (Pinned -> Device)
            nbytes = int(event.get("args", {}).get("bytes", 0)) if event["cat"] == "gpu_memcpy" else 0
            events.append(Event(kind, float(event["ts"]), float(event["dur"]), nbytes))
    return events


def busy_us(events: Sequence[Event]) -> float:
    """Microseconds in which the GPU was busy; concurrent events count once."""
    busy = end = 0.0
    for event in sorted(events, key=lambda event: event.begin_us):
        begin = max(event.begin_us, end)
        busy += max(0.0, event.begin_us + event.us - begin)
        end = max(end, event.begin_us + event.us)
    return busy


def run(folder: str, rehearse: bool, seconds: float) -> Iterator[Found]:
    """Measure every variant that has a bundle; the failure of one is a row."""
    if rehearse:
        raise SystemExit("skipped: a profile needs a GPU; tests/tools/test_gpu_sections.py rehearses it in memory")
    work = Path(folder, "generate")
    folders = {name: bundle for name in VARIANTS if (bundle := bundle_folder(work, name, PRECISION)).exists()}
    if not folders:
        raise SystemExit(f"skipped: no bundle in {work}: run the section generate first, which makes them")
    bad = []
    for variant, path in folders.items():
        try:
            for found in measure(variant, partial(_load, path), BATCHES, SOURCE, TOKENS):
                bad += [variant] if found[1].keys() & {"failed", WRONG} else []
                yield found
        except Exception as error:  # a runtime's own classes among them
            bad.append(variant)
            yield "Variants that cannot be loaded", {"variant": variant, **failed(error)}
    if bad:
        raise SystemExit(f"error: a step failed or does what it should not: {', '.join(dict.fromkeys(bad))}")


def _load(path: Path) -> tuple[OnnxRuntimeCuda, Bundle, Profiler]:
    bundle = Bundle.load(path, verify=False)
    return load_onnxruntime_cuda(bundle), bundle, profile


def measure(
    variant: str,
    load: Callable[[], tuple[OnnxRuntimeCuda, Bundle, Profiler]],
    batches: Sequence[int],
    source: int,
    tokens: int,
) -> Iterator[Row]:
    """Yield where the nodes of a variant run, and a row for each batch, without and with a CUDA graph."""
    engine, bundle, profiler = load()
    for graph, session in zip(("encoder", "decoder"), engine.sessions, strict=True):
        nodes = placement(session)
        for provider in sorted({provider for provider, _ in nodes}):
            there = sorted((op, count) for (where, op), count in nodes.items() if where == provider)
            cell = ", ".join(f"{count} {op}" for op, count in there)
            yield "Nodes by provider", {"variant": variant, "graph": graph, "provider": provider, "nodes": cell}
    title = f"A decode step of {tokens} tokens, source of {source}"
    for B in batches:
        for captured in (False, True) if engine.makes_cuda_graphs else (False,):
            cells = {"variant": variant, "batch": B, "as": "a CUDA graph" if captured else "single kernels"}
            yield from tried(title, cells, partial(_step, engine, bundle, profiler, B, source, tokens, captured))


def _step(
    engine: OnnxRuntimeCuda, bundle: Bundle, profiler: Profiler, B: int, source: int, tokens: int, captured: bool
) -> dict[str, Any]:
    """The cells of one row."""
    own, engine.makes_cuda_graphs = engine.makes_cuda_graphs, captured
    try:
        C = 2 * BEAMS
        ids = source_ids(bundle.manifest.sizes.source_vocabulary, B, source)
        decoding = engine.begin(ids, np.ones_like(ids), BEAMS, tokens + ROUNDS + PROFILED + 5, C)
        _set_inputs(decoding, bundle.manifest.sizes.vocabulary, B, tokens)
        step = decoding.step
        for _ in range(3):  # as it is, captured, launched
            step()
        if captured and not engine.makes_cuda_graphs:
            own = False
            raise RuntimeError("a step could not be captured; the log says why")
        ms = 1e3 * statistics.median(timeit.repeat(step, number=1, repeat=ROUNDS))
        events = profiler(lambda: [step() for _ in range(PROFILED)])
    finally:
        engine.makes_cuda_graphs = own
    if not events:
        return {"ms": ms, WRONG: "the profiler saw nothing of the GPU"}
    busy_ms = busy_us(events) / PROFILED / 1e3
    count, nbytes = Counter[str](), Counter[str]()
    for event in events:
        count[event.kind] += 1
        nbytes[event.kind] += event.nbytes
    cells = {"ms": ms, "GPU busy, ms": busy_ms, "GPU rests": f"{max(0.0, 1 - busy_ms / ms):.0%}"}
    cells["kernels"] = count["kernel"] / PROFILED
    for kind, what in (("HtoD", "copies to the GPU"), ("DtoH", "copies back")):
        cells |= {what: count[kind] / PROFILED, f"{what}, bytes": nbytes[kind] / PROFILED}
    expected = B * C * CANDIDATE_BYTES
    is_right = nbytes["DtoH"] == PROFILED * expected
    return {**cells, **({} if is_right else {WRONG: f"expected {expected:,} bytes back, the candidates"})}


def _set_inputs(decoding: Decoding, vocabulary: int, B: int, T: int) -> None:
    """The inputs of a step after T tokens, with a random history, and an ancestry of random reorderings."""
    generator, inputs = np.random.default_rng(T), decoding.inputs
    inputs["history"][:, :T] = generator.integers(5, vocabulary, (B * BEAMS, T))
    ancestry = inputs["ancestry"]
    for t in range(T):
        parents = generator.integers(0, BEAMS, (B, BEAMS, 1))
        ancestry[:, :, :t] = np.take_along_axis(ancestry[:, :, :t], parents, axis=1)
        ancestry[:, :, t] = np.arange(BEAMS)
    decoding.reserve_banned(1)
    values = {"positions": T - 1, "lengths": T, "history_lengths": T, "banned": 2, "candidates": 2 * BEAMS}
    values |= {"normalize": True, "repetition_penalty": 1, "no_repeat_ngram_size": 3}
    inputs["tokens"][:] = inputs["history"][:, T - 1 : T]
    inputs["beam_index"][:] = np.arange(B * BEAMS)
    for name, value in values.items():
        inputs[name][...] = value
