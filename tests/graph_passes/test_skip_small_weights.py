"""Source positions of small attention weight, skipped: the kernels, the pass, and a bundle marked as inexact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import CheckpointCache
from support.operators.runs import MODULES, run
from support.tolerance import assert_close
from tightbeam.export import ExportError, export_model
from tightbeam.graph_passes import PRESETS, PassError, rewrite, same_for_all, skip_small_weights
from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops._case import Array, Case

LIBRARY = cpu_library()
CASES = {
    "SourceAttention": [
        MODULES["SourceAttention"].random_case(0, B=2, M=3, H=4, G=2, K=8, V=12, N=150, spread=6.0),
        MODULES["SourceAttention"].random_case(1, B=1, M=1, H=2, G=2, K=5, V=3, N=33, spread=3.0),
    ],
    "LatentAttention": [
        MODULES["LatentAttention"].random_case(0, B=2, M=2, H=4, G=4, K=16, N=100, rotary=8, spread=6.0),
        MODULES["LatentAttention"].random_case(1, B=1, M=4, H=3, G=1, K=24, N=70, spread=3.0),
    ],
}


def with_threshold(case: Case, threshold: float) -> Case:
    return replace(case, attributes={**case.attributes, "weight_threshold": threshold})


@pytest.mark.skipif(LIBRARY is None, reason="the functions inside a model skip nothing")
@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases])
@pytest.mark.parametrize("threshold", [1e-30, 0.003, 0.1])
def test_weights_below_the_threshold_count_as_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, case: Case, threshold: float
) -> None:
    module = MODULES[name]
    softmax = module.softmax_with_lse
    skipped = []

    def cut(scores: Array) -> tuple[Array, Array]:
        weights, lse = softmax(scores)
        skipped.append(((weights > 0) & (weights < threshold)).sum())
        return np.where(weights < threshold, 0, weights), lse

    found = run(name, with_threshold(case, threshold), LIBRARY)
    monkeypatch.setattr(module, "softmax_with_lse", cut)
    exact, naive = module.exact(case), module.exact(case, np.float32)
    for output in exact:
        assert_close(found[output], exact[output], naive[output])
    assert (max(skipped) > 0) == (threshold > 1e-20)


@pytest.mark.skipif(LIBRARY is None, reason="the functions inside a model skip nothing")
@pytest.mark.parametrize("threshold", [-0.1, 1.0, float("nan")])
@pytest.mark.parametrize("name", CASES)
def test_threshold_outside_0_to_1_is_refused(name: str, threshold: float) -> None:
    with pytest.raises(Exception, match=f"{name}: attribute weight_threshold is"):
        run(name, with_threshold(CASES[name][0], threshold), LIBRARY)


def test_pass_needs_attention_operators(bundles: BundleCache) -> None:
    canonical = bundles.trace("bart")[1]
    for variant in ("dedup", "el"):
        graphs, _ = rewrite(canonical, same_for_all(PRESETS[variant], canonical.sizes.L, ""))
        assert skip_small_weights(graphs, 0.01).matched == canonical.sizes.L
    graphs, _ = rewrite(canonical, same_for_all(PRESETS["baseline"], canonical.sizes.L, ""))
    with pytest.raises(PassError, match="no layer reads its source cache with an operator of plugins/"):
        skip_small_weights(graphs, 0.01)


def test_a_bundle_says_that_it_is_not_exact(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    checkpoint = checkpoints("bart")
    for threshold, same in ((1e-12, True), (0.4, False)):
        bundle = export_model(checkpoint, tmp_path / "out", variant="dedup", weight_threshold=threshold, force=True)
        assert bundle.manifest.weight_threshold == threshold
        assert "skip_small_weights" in [entry.name for entry in bundle.manifest.passes]
        assert bundle.manifest.parity is not None
        assert (bundle.manifest.parity.differing == 0) == same
    for threshold in (-1.0, 1.0, float("nan")):
        with pytest.raises(ExportError, match=r"weight_threshold=\S+ is not a share below 1; expected 0 \(exact\)"):
            export_model(checkpoint, tmp_path / "other", weight_threshold=threshold)
