"""The error of a half precision: what rounds as an engine will, against the bundle, both in ONNX Runtime."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

from tightbeam.deploy.bundle import MANIFEST, WEIGHTS, Bundle, file_entry
from tightbeam.deploy.engines import PrecisionErrorEntry
from tightbeam.export.errors import ExportError
from tightbeam.export.graph_files import graph_entries, state_entries, write_graphs
from tightbeam.export.sample_texts import SAMPLE_TEXTS
from tightbeam.graph_passes import ModelGraphs
from tightbeam.graph_passes.simulate_precision import simulate_precision

__all__ = ["precision_error"]


def precision_error(bundle: Bundle, graphs: ModelGraphs, room: int) -> PrecisionErrorEntry:
    """Compare log-probabilities, in a process of its own, on a few texts (or random sources, without a tokenizer).

    ``graphs``: the bundle's in half precision (``lower_precision``), with caches of ``room`` positions.
    Raises ExportError where they give no numbers.
    """
    texts = SAMPLE_TEXTS if bundle.manifest.tokenizer else ()
    with tempfile.TemporaryDirectory(prefix="tightbeam-") as folder:
        _write_rounded(bundle, graphs, Path(folder))
        command = [sys.executable, "-m", "tightbeam.deploy.comparison", str(bundle.path), folder, str(room), *texts]
        done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise ExportError(f"measuring the error failed: {lines[-1]} (--no-check builds without it)")
    found = json.loads(done.stdout)
    if not math.isfinite(found["error"]):
        raise ExportError(
            "in this precision the model's scores are no numbers: its activations are beyond the type's range; take "
            "--precision bf16 or fp32 (--no-check builds without this test)"
        )
    return PrecisionErrorEntry(**found)


def _write_rounded(bundle: Bundle, graphs: ModelGraphs, folder: Path) -> None:
    """A bundle in float32 that rounds wherever ``graphs`` are in half precision."""
    simulated = graphs.copy()
    simulate_precision(simulated)
    write_graphs(simulated, folder)
    changed = {
        **graph_entries(simulated, folder),
        "weights": file_entry(folder, WEIGHTS),
        "cache_states": state_entries(simulated),
        "tokenizer": None,
        "speech": None,
    }
    manifest = bundle.manifest.model_copy(update=changed)
    (folder / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
