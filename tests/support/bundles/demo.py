"""A bundle of the demo model, whose weights are in the repository: the same in every environment."""

from __future__ import annotations

from pathlib import Path

from support.bundles.traces import traced
from tightbeam.deploy.bundle.writer import write_bundle
from tightbeam.export.checkpoint.load import load_checkpoint
from tightbeam.export.writing.bundle_files import write_files
from tightbeam.graph_passes import PRESETS, rewrite, same_for_all


def demo_bundle(target: Path, variant: str = "dedup") -> Path:
    """Write a bundle of the demo model at ``target``."""
    checkpoint = load_checkpoint("demo")
    canonical = traced(checkpoint)
    plan = same_for_all(PRESETS[variant], canonical.sizes.L, "")
    graphs, results = rewrite(canonical, plan)
    return write_bundle(
        target, lambda folder: write_files(folder, checkpoint, graphs, results, plan, variant=variant)
    ).path
