"""The checkpoint that is timed and its bundles, of one trace. A process of `generate.py`.

The request: ``work`` (folder), ``variants``, ``precision`` (of what is timed), ``tiny`` (a rehearsal: the demo model
stands for BART-large). Existing files in the folder are reused.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tightbeam.deploy.errors import BundleError
from tightbeam.export import export_model, pipeline
from tightbeam.export.checkpoint.files import read_files
from tightbeam.export.errors import ExportError
from tightbeam.graph_passes import PassError, presets_of
from tightbeam.graph_passes.caches.cost import count_weights
from tools.gpu._generate.layout import CHECKED_IN, bundle_folder, checkpoint_folder
from tools.gpu._generate.process import serve_case
from tools.make_checkpoint import main as make_checkpoint
from tools.shared_steps import shared_steps

DEMO = Path(__file__).resolve().parents[3] / "export" / "demo"


def make_bundles(request: Mapping[str, Any], report: Callable[[Mapping[str, Any]], None]) -> None:
    """Report ``weights`` (counts of multiplied weights in encoder and decoder), ``seconds`` of each step, and
    ``refused``: bundle folder -> reason.
    """
    work = Path(request["work"])
    work.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    refused: dict[str, str] = {}
    folder, counted = checkpoint_folder(work), work / "weights.json"
    if not folder.exists():
        with _timed(seconds, "checkpoint"):
            draft = folder.with_name(f"{folder.name}.draft")  # the folder is written whole or not at all
            shutil.rmtree(draft, ignore_errors=True)
            _make_checkpoint(draft, request["tiny"])
            draft.rename(folder)
    precisions = dict.fromkeys([CHECKED_IN, request["precision"]])
    targets = [
        (variant, each, bundle_folder(work, variant, each)) for variant in request["variants"] for each in precisions
    ]
    missing = [target for target in targets if not target[2].exists()]
    if missing or not counted.exists():
        with shared_steps("load_files", "trace", "calibrate"):
            with _timed(seconds, "loading and tracing"):
                checkpoint = pipeline.load_files(read_files(folder))
                counted.write_text(json.dumps(vars(count_weights(pipeline.trace(checkpoint)))), "utf-8")
            report({"weights": json.loads(counted.read_text("utf-8"))})
            possible = presets_of(checkpoint.sizes)
            for variant, precision, target in missing:
                if variant not in possible:
                    continue
                try:
                    with _timed(seconds, target.name):
                        export_model(folder, target, variant=variant, precision=precision, check=False)
                except (BundleError, ExportError, PassError) as error:
                    refused[target.name] = str(error)
                report({"seconds": seconds, "refused": refused})
    report({"weights": json.loads(counted.read_text("utf-8")), "seconds": seconds, "refused": refused})


def _make_checkpoint(folder: Path, tiny: bool) -> None:
    if tiny:
        shutil.copytree(DEMO, folder)
    else:
        make_checkpoint(folder, shape="bart-large-cnn", orthogonal_keys=True)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start


if __name__ == "__main__":
    serve_case(make_bundles)
