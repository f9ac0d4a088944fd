"""The error of a half precision: float32 graphs next to graphs that round as the precision does, in ONNX Runtime."""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tightbeam.deploy.bundle.manifest import MANIFEST, WEIGHTS, Manifest, PrecisionErrorEntry
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.bundle.writer import file_entry
from tightbeam.export.accuracy.compare import TIMES, Times
from tightbeam.export.accuracy.counted_process import run_counted
from tightbeam.export.checkpoint.sample_texts import SAMPLE_TEXTS
from tightbeam.export.counts import count
from tightbeam.export.errors import ExportError
from tightbeam.export.writing.entries import graph_entries, state_entries
from tightbeam.export.writing.graphs import write_graphs
from tightbeam.graph_passes import ModelGraphs
from tightbeam.graph_passes.precision.simulate_precision import simulate_precision

__all__ = ["EXACT", "describe_error", "measure_rounding_pair", "precision_error", "speed_note", "write_rounding_pair"]

EXACT, ROUNDED = "exact", "rounded"


def precision_error(bundle: Bundle, graphs: ModelGraphs, max_steps: int) -> PrecisionErrorEntry:
    """Measure the error of an engine in half precision.

    Parameters
    ----------
    bundle
        The float32 bundle that the engine is built from.
    graphs
        The engine's graphs in half precision (``lower_precision``).
    max_steps
        Capacity of their caches, in tokens.

    Returns
    -------
    PrecisionErrorEntry
        Relative error of the log-probabilities, and how often another token is best.

    Raises
    ------
    ExportError
        The graphs give NaN or infinite scores, or cannot be run.
    """
    with tempfile.TemporaryDirectory(prefix="tightbeam-") as folder:
        _write_rounded(bundle.manifest, graphs, Path(folder))
        fix = "take --precision bf16 or fp32"
        return _measure(bundle.path, bundle.manifest, Path(folder), max_steps, fix)[0]


def write_rounding_pair(scratch: Path, bundle: Path, manifest: Manifest, exact: ModelGraphs, low: ModelGraphs) -> None:
    """Write the two float32 bundles that ``measure_rounding_pair`` compares: with exact graphs, and with rounded ones.

    Parameters
    ----------
    scratch
        An empty folder.
    bundle
        Folder of the bundle in half precision, for the files beside its graphs.
    manifest
        The bundle's manifest.
    exact, low
        The graphs in float32, and in half precision.
    """
    for name in (EXACT, ROUNDED):
        (scratch / name).mkdir()
    graphs_and_weights = (manifest.encoder, manifest.decoder, manifest.weights)
    for entry in (entry for entry in manifest.files() if entry not in graphs_and_weights):
        target = scratch / EXACT / entry.file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle / entry.file, target)
    float_caches = {"cache_precision": None, "generated_cache_precision": None}
    _write(manifest.model_copy(update=float_caches), exact, scratch / EXACT)
    _write_rounded(manifest, low, scratch / ROUNDED)


def measure_rounding_pair(scratch: Path, manifest: Manifest, inexact: str) -> tuple[PrecisionErrorEntry, Times | None]:
    """Measure the error between the two bundles in ``scratch``, and in int8 the time of both on this machine.

    Raises ExportError if scores are NaN or infinite; ``inexact`` names the options that may be the cause.
    """
    fix = "take --precision fp32, and of that bundle build-engine --precision bf16"
    if manifest.precision != "fp16":
        fix = f"leave {inexact} out"
    timed = manifest.has_integers
    return _measure(scratch / EXACT, manifest, scratch / ROUNDED, manifest.sizes.max_target, fix, timed=timed)


def _measure(
    exact: Path, manifest: Manifest, rounded: Path, max_steps: int, fix: str, *, timed: bool = False
) -> tuple[PrecisionErrorEntry, Times | None]:
    """Compare two bundles in a process of its own, without torch; on random sources if there is no tokenizer."""
    texts = SAMPLE_TEXTS if manifest.tokenizer else ()
    arguments = [*([TIMES] if timed else []), str(exact), str(rounded), str(max_steps), *texts]
    command = [sys.executable, "-m", "tightbeam.export.accuracy.compare", *arguments]
    count("loading both bundles")
    done = run_counted(command, _count_line)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise ExportError(f"measuring the error failed: {lines[-1]}; {fix}")
    found = json.loads(done.stdout.splitlines()[-1])
    if not math.isfinite(found["error"]):
        raise ExportError(
            f"in this precision the model's scores are NaN or infinite: activations exceed its range; {fix}"
        )
    times = Times(**found.pop("times")) if timed else None
    return PrecisionErrorEntry(**found), times


def _count_line(_: int, line: bytes) -> None:
    """Count as a line ``DONE OF`` of the command says; its last line is the result, a JSON object."""
    if not line.startswith(b"{"):
        done, total = map(int, line.split())
        count("steps compared", done, total)


def _write_rounded(manifest: Manifest, graphs: ModelGraphs, folder: Path) -> None:
    """Write a float32 bundle that rounds wherever ``graphs`` are in half precision."""
    simulated = graphs.copy()
    simulate_precision(simulated)
    _write(manifest.model_copy(update={"tokenizer": None, "speech": None, "image": None}), simulated, folder)


def _write(manifest: Manifest, graphs: ModelGraphs, folder: Path) -> None:
    write_graphs(graphs, folder)
    changed = {
        "prompt": None,
        "prefill": None,
        **graph_entries(graphs, folder),
        "weights": file_entry(folder, WEIGHTS),
        "cache_states": state_entries(graphs),
        "precision": "fp32",
        "quantized": (),
        "quantized_caches": (),
        "cache_divergence": None,
    }
    (folder / MANIFEST).write_text(manifest.model_copy(update=changed).model_dump_json(), encoding="utf-8")


def speed_note(precision: str, times: Times) -> str:
    """A sentence that a precision is not faster than float32 on this machine; empty if it is faster."""
    parts = (("the encoding of a batch", *times.encoder_s), ("a step", *times.step_s))
    slow = [
        f"{what} takes {1e3 * low:.3g} ms, and {1e3 * exact:.3g} ms in float32"
        for what, exact, low in parts
        if not low < exact
    ]
    return f"{precision} is not faster than float32 on this machine: {'; '.join(slow)}" if slow else ""


def describe_error(
    precision: str, error: PrecisionErrorEntry | None, inputs: str, int8_caches: Sequence[str] = ()
) -> str:
    """A line about the error of a precision below float32, or of caches in int8, as commands print it.

    ``inputs`` are those that it was measured on (``Manifest.error_inputs``).
    """
    how = "simulated" if precision in ("fp16", "bf16") else "measured"
    if int8_caches:
        cache = f"an int8 {' and '.join(int8_caches)} cache"
        precision = cache if precision == "fp32" else f"{precision} with {cache}"
    if error is None:
        return f"error of {precision}: not measured (--no-check)"
    return (
        f"error of {precision}: log-probabilities differ from float32's by {error.error:.2%} of their standard "
        f"deviation; the most likely token is another one at {error.differing} of {error.steps} steps ({how} in ONNX "
        f"Runtime on {inputs})"
    )
