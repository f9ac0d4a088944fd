"""Checkpoints with random weights and their bundles, one trace each. A process of `generate.py`.

The request: ``work`` (folder), ``variants``, ``families`` (checked at tiny sizes), ``precision`` (of what is timed),
``tiny`` (a rehearsal: the model that is timed is tiny, too). Existing files in the folder are reused.
"""

from __future__ import annotations

import functools
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tightbeam.deploy.errors import BundleError
from tightbeam.export import export_model
from tightbeam.export import pipeline as exporter
from tightbeam.export.accuracy.calibration import calibrate
from tightbeam.export.checkpoint.load import Checkpoint, load_checkpoint
from tightbeam.export.errors import ExportError
from tightbeam.export.pipeline import trace
from tightbeam.graph_passes import ModelGraphs, PassError, presets_of
from tightbeam.graph_passes.caches.cost import count_weights
from tools.gpu._generate.layout import CHECKED_IN, TIMED, bundle_folder, checkpoint_folder
from tools.gpu._generate.process import serve_case
from tools.gpu._results import write_whole
from tools.gpu._tests_support import tests_support
from tools.make_checkpoint import main as make_checkpoint


def make_bundles(request: Mapping[str, Any], report: Callable[[Mapping[str, Any]], None]) -> None:
    """Report ``weights`` (counts of multiplied weights in encoder and decoder of the timed model), ``seconds`` of each
    step, and ``refused``: bundle folder -> reason.
    """
    work = Path(request["work"])
    work.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    refused: dict[str, str] = {}
    precisions = list(dict.fromkeys([CHECKED_IN, request["precision"]]))
    for model in (TIMED, *request["families"]):
        folder = checkpoint_folder(work, model)
        if not folder.exists():
            with _timed(seconds, f"{model}: checkpoint"):
                draft = folder.with_name(f"{folder.name}.draft")  # the folder is written whole or not at all
                shutil.rmtree(draft, ignore_errors=True)
                _make_checkpoint(draft, model, request["tiny"])
                draft.rename(folder)
        wanted = precisions if model == TIMED else [CHECKED_IN]
        counted = work / f"{model}.weights.json"
        targets = [(v, p, bundle_folder(work, model, v, p)) for v in request["variants"] for p in wanted]
        missing = [target for target in targets if not target[2].exists()]
        if missing or not counted.exists():
            with _timed(seconds, f"{model}: loading and tracing"):
                checkpoint = load_checkpoint(folder)
                canonical = trace(checkpoint)
            write_whole(counted, json.dumps(vars(count_weights(canonical))))
            refused |= _export(checkpoint, canonical, missing, seconds)
            del checkpoint, canonical
        if model == TIMED:
            report({"weights": json.loads(counted.read_text(encoding="utf-8"))})
        report({"seconds": seconds, "refused": refused})


def _make_checkpoint(folder: Path, model: str, tiny: bool) -> None:
    if model == TIMED and not tiny:
        make_checkpoint(folder, shape="bart-large-cnn", orthogonal_keys=True)
        return
    checkpoints = tests_support("checkpoints")
    own = {"generation": checkpoints.WHISPER_GENERATION} if model == "whisper" else {}
    checkpoints.make_checkpoint(folder, "bart" if model == TIMED else model, **own)


def _export(
    checkpoint: Checkpoint,
    canonical: ModelGraphs,
    targets: Sequence[tuple[str, str, Path]],
    seconds: dict[str, float],
) -> dict[str, str]:
    """Export each (variant, precision, folder); folder -> reason where it was refused."""
    refused = {}
    possible = presets_of(canonical.sizes)
    with _one_trace(checkpoint, canonical):
        for variant, precision, folder in targets:
            if variant not in possible:
                continue
            try:
                with _timed(seconds, folder.name):
                    export_model(checkpoint.path, folder, variant=variant, precision=precision, check=False)
            except (BundleError, ExportError, PassError) as error:
                refused[folder.name] = str(error)
    return refused


@contextmanager
def _one_trace(checkpoint: Checkpoint, canonical: ModelGraphs) -> Iterator[None]:
    """Patch the exporter: one checkpoint, loaded, traced and calibrated once for all its variants."""
    seen = functools.cache(lambda: calibrate(checkpoint, None))
    shared: Any = {
        "load_files": lambda _: checkpoint,
        "trace": lambda _: canonical.copy(),
        "calibrate": lambda *_: seen(),
    }
    with patch.multiple(exporter, **shared):
        yield


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start


if __name__ == "__main__":
    serve_case(make_bundles)
