"""Section "step" of gpu_check.py: a decode step on ONNX Runtime's CUDA provider, as a profile shows it.

Copies between host and GPU must be the small inputs and [B, C] candidates alone; with a CUDA graph the GPU must not
wait between kernels. The report lists the nodes that ONNX Runtime placed on the CPU. The bundles are those of the
section "generate".
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from tightbeam.deploy import Bundle
from tightbeam.deploy.errors import first_line
from tightbeam.deploy.runtimes.onnxruntime_cuda import OnnxRuntimeCuda, load_onnxruntime_cuda, placement
from tools.bench.decode_step import random_source, step_at
from tools.bench.turns import in_turn
from tools.gpu._generate.layout import bundle_folder
from tools.gpu._results import Results, skip

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = ("dedup", "el", "slim", "baseline")
BEAMS, PROFILED, ROUNDS = 4, 10, 20
CANDIDATE_BYTES = 4 + 8 + 8
"""A score, a beam and a token."""
GAP = 0.1
"""Predicted: with a CUDA graph the GPU rests for less than this share of a step."""
TITLE = "A decode step of {tokens} tokens, source of {source}"
COLUMNS = (
    *("variant", "batch", "as", "ms", "GPU busy, ms", "GPU rests", "kernels"),
    *("copies to the GPU", "bytes", "copies back", "bytes", "[B, C] candidates, bytes"),
)


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
Subject = tuple[OnnxRuntimeCuda, Bundle, Profiler]
"""A variant's engine, its bundle, and what profiles it."""


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


def main(
    output: Annotated[Path, typer.Option(help="File for the results.")],
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Without a GPU: skip the section.")] = False,
    work: Annotated[Path, typer.Option(help="Folder of the bundles of the section generate.")] = ROOT
    / "build/gpu-generate",
    batch: Annotated[list[int], typer.Option(help="Batch sizes to time.")] = [32, 128],  # noqa: B006
    source: Annotated[int, typer.Option(help="Source length in tokens.")] = 1024,
    tokens: Annotated[int, typer.Option(help="Tokens generated before the timed step.")] = 30,
    precision: Annotated[str, typer.Option(help="Precision of the bundles.")] = "fp16",
) -> None:
    results = Results(output)
    if rehearse:
        skip("a profile needs a GPU; tests/tools/test_gpu_sections.py rehearses this section over plain memory")
    run(results, _engines(work, precision), batch, source, tokens)


def run(
    results: Results,
    subjects: Iterable[tuple[str, Callable[[], Subject]]],
    batches: Sequence[int],
    source: int,
    tokens: int,
) -> None:
    """Measure variants, each loaded when its turn comes. Raises SystemExit, with every error, once all are through."""
    errors = []
    for variant, load in subjects:
        errors += tried(results, variant, partial(_measure_variant, results, variant, load, batches, source, tokens))
    if errors:
        raise SystemExit(f"error: {'; '.join(errors)}")


def tried(results: Results, name: str, work: Callable[[], list[str]]) -> list[str]:
    """The errors that ``work`` finds; an exception is one of them, and later work goes on."""
    try:
        return work()
    except Exception as error:  # a runtime's own classes among them
        results.note(f"{name}: {type(error).__name__}: {first_line(error)}")
        return [f"{name} failed: {type(error).__name__}"]


def _measure_variant(
    results: Results, variant: str, load: Callable[[], Subject], batches: Sequence[int], source: int, tokens: int
) -> list[str]:
    engine, bundle, profiler = load()
    for where, graph in zip(("encoder", "decoder"), engine.sessions, strict=True):
        _report_placement(results, variant, where, placement(graph))
    errors = []
    for B in batches:
        measure = partial(_measure, results, variant, engine, bundle, profiler, B, source, tokens)
        errors += tried(results, f"{variant}, batch {B}", partial(measure, captured=False))
        if engine.makes_cuda_graphs:
            errors += tried(results, f"{variant}, batch {B}, a CUDA graph", partial(measure, captured=True))
    return errors


def _engines(work: Path, precision: str) -> Iterator[tuple[str, Callable[[], Subject]]]:
    folders = {variant: bundle_folder(work, variant, precision) for variant in VARIANTS}
    there = {variant: folder for variant, folder in folders.items() if folder.exists()}
    if not there:
        skip(f"no bundle in {work}: run the section generate first, which makes them")
    for variant, folder in there.items():
        yield variant, partial(_load, folder)


def _load(folder: Path) -> Subject:
    bundle = Bundle.load(folder, verify=False)
    return load_onnxruntime_cuda(bundle), bundle, profile


def _report_placement(results: Results, variant: str, graph: str, found: Counter[tuple[str, str]]) -> None:
    columns = ("variant", "graph", "provider", "nodes")
    for provider in sorted({provider for provider, _ in found}):
        nodes = sorted((op, count) for (where, op), count in found.items() if where == provider)
        cell = ", ".join(f"{count} {op}" for op, count in nodes)
        results.row("Nodes by provider", columns, (variant, graph, provider, cell))


def _measure(
    results: Results,
    variant: str,
    engine: OnnxRuntimeCuda,
    bundle: Bundle,
    profiler: Profiler,
    B: int,
    source: int,
    tokens: int,
    *,
    captured: bool,
) -> list[str]:
    """Add one row; return the list of errors."""
    own, engine.makes_cuda_graphs = engine.makes_cuda_graphs, captured
    try:
        C = 2 * BEAMS
        decoding = engine.begin(*random_source(bundle, B, source), BEAMS, tokens + ROUNDS + PROFILED + 5, C)
        step = step_at(decoding, bundle, B, BEAMS, tokens)
        for _ in range(3):  # as it is, captured, launched
            step()
        if captured and not engine.makes_cuda_graphs:
            results.note(f"{variant}, batch {B}: a step could not be captured; the log says why")
            own = False
            return [f"{variant} could not be captured"]
        ms = 1e3 * in_turn({"step": step}, ROUNDS)["step"]
        events = profiler(lambda: [step() for _ in range(PROFILED)])
    finally:
        engine.makes_cuda_graphs = own
    way = "a CUDA graph" if captured else "single kernels"
    title = TITLE.format(tokens=tokens, source=source)
    if not events:
        results.row(title, COLUMNS, (variant, B, way, f"{ms:.3f}", *[""] * (len(COLUMNS) - 4)))
        return [f"{variant}, batch {B}, {way}: the profiler saw nothing of the GPU"]
    busy = busy_us(events) / PROFILED / 1e3
    count, nbytes = Counter[str](), Counter[str]()
    for event in events:
        count[event.kind] += 1
        nbytes[event.kind] += event.nbytes
    candidates = B * C * CANDIDATE_BYTES
    rests = max(0.0, 1 - busy / ms)
    copies = [
        cell for kind in ("HtoD", "DtoH") for cell in (f"{count[kind] / PROFILED:g}", f"{nbytes[kind] / PROFILED:,.0f}")
    ]
    cells = (variant, B, way, f"{ms:.3f}", f"{busy:.3f}", f"{rests:.0%}", f"{count['kernel'] / PROFILED:g}", *copies)
    results.row(title, COLUMNS, (*cells, f"{candidates:,}"))
    results.figure(f"{variant} {B} {way}", {"ms": ms, "busy_ms": busy, "copies": dict(count), "bytes": dict(nbytes)})
    if captured and rests > GAP:
        results.note(
            f"{variant}, batch {B}: the GPU rests for {rests:.0%} of a captured step; predicted: under {GAP:.0%}"
        )
    if nbytes["DtoH"] != PROFILED * candidates:
        return [
            f"{variant}, batch {B}, {way}: {nbytes['DtoH'] / PROFILED:,.0f} bytes back a step, expected {candidates:,}"
        ]
    return []


if __name__ == "__main__":
    typer.run(main)
