"""A bundle of the demo model, whose weights are in the repository: the same in every environment."""

from __future__ import annotations

from pathlib import Path

from support.bundles.traces import traced
from tightbeam.deploy.bundle.writer import write_bundle
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.writing.bundle_files import write_files
from tightbeam.graph_passes import PRESETS, rewrite, same_for_all, to_precision


def demo_bundle(target: Path, variant: str = "dedup", precision: str = "", *, screened: bool = False) -> Path:
    """Write a bundle of the demo model at ``target``: the variant's own graphs, or those in a precision."""
    checkpoint = load_checkpoint("demo")
    canonical = traced(checkpoint)
    plan = same_for_all(PRESETS[variant], canonical.sizes.L, "")
    graphs, results = rewrite(canonical, plan)
    if precision:
        graphs, lowered = to_precision(graphs, precision, screened=screened)
        results += lowered
    parts = checkpoint, graphs, results, plan
    return write_bundle(
        target, lambda folder: write_files(folder, *parts, variant=variant, precision=precision or "fp32")
    ).path
