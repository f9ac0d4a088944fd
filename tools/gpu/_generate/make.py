"""The checkpoint that is timed and its bundles, of one trace: a process of `generate.py`."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from tightbeam.export import export_model, pipeline
from tightbeam.export.checkpoint.files import read_files
from tightbeam.graph_passes.caches.cost import count_weights
from tools.gpu._process import ROOT, Found, tried
from tools.make_checkpoint import main as make_checkpoint
from tools.shared_steps import shared_steps

__all__ = ["CHECKED_IN", "VARIANTS", "WEIGHTS", "bundle_folder", "checkpoint_folder", "run"]

VARIANTS = ("dedup", "el", "kcache", "baseline")
"""The first are measured first, should time be short."""
CHECKED_IN = "fp32"
WEIGHTS = "weights.json"
"""File of the counts of multiplied weights in encoder and decoder."""


def checkpoint_folder(work: Path) -> Path:
    """Folder of the checkpoint that is timed."""
    return work / "bart-large"


def bundle_folder(work: Path, variant: str, precision: str) -> Path:
    """Folder of a bundle of that checkpoint."""
    return work / f"bart-large-{variant}-{precision}"


def run(work: str, precision: str, tiny: bool) -> Iterator[Found]:
    """Make what is not there yet, and yield the seconds of each bundle.

    Parameters
    ----------
    work : str
        The folder for all of it.
    precision : str
        Precision of what is timed; tokens are compared in ``CHECKED_IN``.
    tiny : bool
        A rehearsal: the demo model stands for BART-large.
    """
    checkpoint, counted = checkpoint_folder(Path(work)), Path(work, WEIGHTS)
    if not checkpoint.exists():
        draft = checkpoint.with_suffix(".draft")  # the folder is written whole or not at all
        shutil.rmtree(draft, ignore_errors=True)
        if tiny:
            shutil.copytree(ROOT / "export" / "demo", draft)
        else:
            make_checkpoint(draft, shape="bart-large-cnn", orthogonal_keys=True)
        draft.rename(checkpoint)
    with shared_steps("load_files", "trace", "calibrate"):
        if not counted.exists():
            loaded = pipeline.load_files(read_files(checkpoint))  # type: ignore[attr-defined]
            counts = count_weights(pipeline.trace(loaded))
            counted.write_text(json.dumps(vars(counts)), encoding="utf-8")
        for variant in VARIANTS:
            for each in dict.fromkeys([CHECKED_IN, precision]):
                folder = bundle_folder(Path(work), variant, each)

                def export(folder: Path = folder, variant: str = variant, each: str = each) -> dict[str, float]:
                    start = time.perf_counter()
                    export_model(checkpoint, folder, variant=variant, precision=each, check=False)
                    return {"seconds": time.perf_counter() - start}

                if not folder.exists():
                    yield from tried("Bundles", {"bundle": folder.name}, export)
