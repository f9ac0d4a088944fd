"""The error of a half precision: what rounds as an engine will, against the float32 graphs, both in ONNX Runtime."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tightbeam.deploy.bundle.manifest import MANIFEST, WEIGHTS, Manifest, PrecisionErrorEntry
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.bundle.writer import file_entry
from tightbeam.export.checkpoint.sample_texts import SAMPLE_TEXTS
from tightbeam.export.errors import ExportError
from tightbeam.export.writing.entries import graph_entries, state_entries
from tightbeam.export.writing.graphs import write_graphs
from tightbeam.graph_passes import ModelGraphs
from tightbeam.graph_passes.precision.simulate_precision import simulate_precision

__all__ = ["describe_error", "measure_rounding_pair", "precision_error", "write_rounding_pair"]

EXACT, ROUNDED = "exact", "rounded"


def precision_error(bundle: Bundle, graphs: ModelGraphs, room: int) -> PrecisionErrorEntry:
    """Of an engine: between a float32 bundle and its ``graphs`` in half precision (``lower_precision``), whose caches
    have ``room`` positions. Raises ExportError where they give no numbers."""
    with tempfile.TemporaryDirectory(prefix="tightbeam-") as folder:
        _write_rounded(bundle.manifest, graphs, Path(folder))
        fix = "take --precision bf16 or fp32 (--no-check builds without this test)"
        return _measure(bundle.path, bundle.manifest, Path(folder), room, fix)


def write_rounding_pair(scratch: Path, bundle: Path, manifest: Manifest, exact: ModelGraphs, low: ModelGraphs) -> None:
    """Of a bundle in half precision, in the folder ``bundle``: write what ``measure_rounding_pair`` compares."""
    for name in (EXACT, ROUNDED):
        (scratch / name).mkdir()
    graphs_and_weights = (manifest.encoder, manifest.decoder, manifest.weights)
    for entry in (entry for entry in manifest.files() if entry not in graphs_and_weights):
        target = scratch / EXACT / entry.file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle / entry.file, target)
    _write(manifest, exact, scratch / EXACT)
    _write_rounded(manifest, low, scratch / ROUNDED)


def measure_rounding_pair(scratch: Path, manifest: Manifest) -> PrecisionErrorEntry:
    """Of what ``write_rounding_pair`` wrote. Raises ExportError where the precision gives no numbers."""
    fix = (
        "take --precision fp32, and of that bundle build-engine --precision bf16 (--no-check exports without this test)"
    )
    return _measure(scratch / EXACT, manifest, scratch / ROUNDED, manifest.sizes.max_target, fix)


def _measure(exact: Path, manifest: Manifest, rounded: Path, room: int, fix: str) -> PrecisionErrorEntry:
    """Compare log-probabilities of two folders, in a process of its own, on a few texts (or random sources, without a
    tokenizer), for at most ``room`` steps. ``fix``: for scores that are no numbers, an ExportError."""
    texts = SAMPLE_TEXTS if manifest.tokenizer else ()
    command = [sys.executable, "-m", "tightbeam.deploy.compare", str(exact), str(rounded), str(room), *texts]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise ExportError(f"measuring the error failed: {lines[-1]} (--no-check does without it)")
    found = json.loads(done.stdout)
    if not math.isfinite(found["error"]):
        raise ExportError(
            f"in this precision the model's scores are no numbers: its activations are beyond the type's range; {fix}"
        )
    return PrecisionErrorEntry(**found)


def _write_rounded(manifest: Manifest, graphs: ModelGraphs, folder: Path) -> None:
    """A bundle in float32 that rounds wherever ``graphs`` are in half precision."""
    simulated = graphs.copy()
    simulate_precision(simulated)
    _write(manifest.model_copy(update={"tokenizer": None, "speech": None}), simulated, folder)


def _write(manifest: Manifest, graphs: ModelGraphs, folder: Path) -> None:
    write_graphs(graphs, folder)
    changed = {
        **graph_entries(graphs, folder),
        "weights": file_entry(folder, WEIGHTS),
        "cache_states": state_entries(graphs),
        "precision": "fp32",
    }
    (folder / MANIFEST).write_text(manifest.model_copy(update=changed).model_dump_json(), encoding="utf-8")


def describe_error(precision: str, error: PrecisionErrorEntry | None) -> str:
    """The error of a half precision as a command prints it."""
    if error is None:
        return f"error of {precision}: not measured (--no-check)"
    return (
        f"error of {precision}: log-probabilities differ from float32's by {error.error:.2%} of their standard "
        f"deviation; another token is best at {error.differing} of {error.steps} steps (simulated in ONNX Runtime)"
    )
