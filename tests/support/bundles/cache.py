"""Bundles of the tests' checkpoints, each made once; one trace of a checkpoint serves all its variants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from support.bundles.traces import traced
from support.checkpoints.families import CheckpointCache
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.bundle.manifest import AlignmentEntry, Manifest
from tightbeam.deploy.bundle.writer import write_bundle
from tightbeam.export.accuracy.alignment_layer import choose_alignment
from tightbeam.export.checkpoint.files import read_files, with_encoding
from tightbeam.export.checkpoint.load import Checkpoint, load_files
from tightbeam.export.writing.bundle_files import write_files
from tightbeam.graph_passes import (
    GENERATED,
    PRESETS,
    SOURCE,
    LayerPlan,
    ModelGraphs,
    rewrite,
    same_for_all,
    to_precision,
)


class BundleCache:
    """Bundles by variant and checkpoint arguments. Those folders are shared: change only a copy."""

    def __init__(self, checkpoints: CheckpointCache, root: Path) -> None:
        self.checkpoints = checkpoints
        self.root = root
        self.traced: dict[str, tuple[Checkpoint, ModelGraphs]] = {}
        self.alignments: dict[Path, AlignmentEntry] = {}
        self.made: dict[str, Path] = {}

    def trace(
        self, family: str = "bart", *, global_tokens: int = 0, short_audio: bool = False, **arguments: Any
    ) -> tuple[Checkpoint, ModelGraphs]:
        """The loaded checkpoint and its canonical graphs."""
        key = json.dumps([family, global_tokens, short_audio, arguments], sort_keys=True)
        if key not in self.traced:
            files = read_files(self.checkpoints(family, **arguments))
            checkpoint = load_files(with_encoding(files, global_tokens=global_tokens, short_audio=short_audio))
            self.traced[key] = (checkpoint, traced(checkpoint))
            if alignment := choose_alignment(checkpoint):
                self.traced[key][1].alignment_heads = alignment.heads
                self.alignments[checkpoint.path] = alignment
        return self.traced[key]

    def mixed(self, family: str, seed: int, target: Path) -> Path:
        """A bundle at ``target`` whose layers have different kinds of caches, drawn at random."""
        checkpoint, canonical = self.trace(family)
        generator = np.random.default_rng(seed)
        source, generated = (generator.permutation(list(kinds)) for kinds in (SOURCE, GENERATED))
        plan = [LayerPlan(str(source[layer]), str(generated[layer]), "") for layer in range(canonical.sizes.L)]
        graphs, results = rewrite(canonical, plan)
        return write_bundle(
            target,
            lambda folder: write_files(
                folder,
                checkpoint,
                graphs,
                results,
                plan,
                variant="dedup",
                alignment=self.alignments.get(checkpoint.path),
            ),
        ).path

    def __call__(
        self,
        variant: str,
        family: str = "bart",
        *,
        precision: str = "fp32",
        cache_precision: str | None = None,
        generated_cache_precision: str | None = None,
        **arguments: Any,
    ) -> Path:
        caches = {"cache_precision": cache_precision, "generated_cache_precision": generated_cache_precision}
        key = json.dumps([variant, family, precision, caches, arguments], sort_keys=True)
        if key not in self.made:
            checkpoint, canonical = self.trace(family, **arguments)
            plan = same_for_all(PRESETS[variant], canonical.sizes.L, "")
            graphs, results = rewrite(canonical, plan)
            graphs, lowered = to_precision(graphs, precision, **caches)
            results += lowered
            target = self.root / f"{family}-{variant}-{precision}-{len(self.made)}"

            def fill(folder: Path) -> Manifest:
                return write_files(
                    folder,
                    checkpoint,
                    graphs,
                    results,
                    plan,
                    variant=variant,
                    precision=precision,
                    alignment=self.alignments.get(checkpoint.path),
                    **caches,
                )

            write_bundle(target, fill)
            self.made[key] = target
        return self.made[key]


def with_generation(runner: Runner, generation: dict[str, Any]) -> Runner:
    """The same model with other settings of its checkpoint."""
    about = runner.manifest.model_copy(update={"generation": generation})
    return Runner(Bundle(runner.bundle.path, about), runner.model.runtime, runner.model.text._codec)
