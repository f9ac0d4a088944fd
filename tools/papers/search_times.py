"""EL-attention's Table 2 in relative form, on this machine: three searches, by what is kept of the source."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tightbeam.deploy import Runner
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.export import export_model
from tools.bench.turns import in_turn
from tools.papers.step_times import check_folder

__all__ = ["SEARCHES", "VARIANTS", "time_searches"]

VARIANTS = ("baseline", "dedup", "el")
BEAMS = 4
STRENGTH = 0.2
"""The paper's penalty of diverse beam search, with as many groups as beams."""
SEARCHES: dict[str, dict[str, Any]] = {
    "beam search": {"num_beams": BEAMS},
    "diverse beam search": {"num_beams": BEAMS, "num_beam_groups": BEAMS, "diversity_penalty": STRENGTH},
    "greedy search": {"num_beams": 1},
}


def time_searches(
    checkpoint: Path, B: int, N: int, T: int, rounds: int, threads: int | None
) -> dict[str, dict[str, float]]:
    """Generate T tokens for B sources of N random tokens by each search, with each variant.

    Returns samples a second by search and variant. Raises SystemExit where the checkpoint is no folder of a model, and
    where two variants generate different tokens; ExportError as `export_model`.
    """
    check_folder(checkpoint)
    length: dict[str, Any] = {"min_new_tokens": T, "max_new_tokens": T}
    with tempfile.TemporaryDirectory() as folder:
        runners = {
            variant: Runner(bundle, OnnxRuntimeCpu(bundle, threads), None)
            for variant in VARIANTS
            for bundle in [export_model(checkpoint, Path(folder) / variant, variant=variant)]
        }
        sizes = runners[VARIANTS[0]].manifest.sizes
        if sizes.max_source < N or sizes.max_target <= T:
            raise SystemExit(
                f"error: source {N} or new tokens {T} exceed the positions of {checkpoint}; pass smaller ones"
            )
        ids = np.random.default_rng(0).integers(5, sizes.source_vocabulary, (B, N))
        found = {}
        for search, settings in SEARCHES.items():
            work = {name: partial(runner.generate, ids, **settings, **length) for name, runner in runners.items()}
            tokens = [generate().sequences for generate in work.values()]
            if not all(np.array_equal(own, tokens[0]) for own in tokens):
                raise SystemExit(
                    f"error: the variants generate different tokens in {search}; measure another checkpoint"
                )
            found[search] = {name: B / seconds for name, seconds in in_turn(work, rounds).items()}
    return found
