"""Whisper's timestamps: the tokens of ``model.generate(return_timestamps=True)`` for one window, in every variant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from support.audio import RATE_HZ, chirp
from support.bundles.cache import BundleCache
from support.checkpoints.timestamps import generate, with_timestamps
from support.references.kept import kept
from support.slow_cases import slow_unless
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.timestamps import TimestampRules
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.deploy.search.processors.timestamps import apply_timestamp_rules
from tightbeam.deploy.search.rows import candidates_of_rows
from tightbeam.deploy.tries.build import build_trie
from tightbeam.graph_passes import PRESETS

SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"max_new_tokens": 9},
    {"language": "de", "num_beams": 3},
    {"task": "translate", "num_beams": 5, "length_penalty": 2.0, "max_length": 44},
    {"num_beams": 2, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "early_stopping": True},
)


def features_of(runner: Runner, count: int) -> Any:
    assert runner.log_mel is not None
    waves = [chirp(1.0), chirp(0.4, high_hz=900), chirp(0.7, low_hz=2000, high_hz=100), chirp(0.9, low_hz=300)]
    return np.stack([runner.log_mel.features(wave[:RATE_HZ]) for wave in waves[:count]])


def expected_of(model: Any, features: Any, settings: dict[str, Any]) -> Any:
    """Tokens of transformers for windows."""

    def make() -> Any:
        return generate(model, torch.from_numpy(features), force_unique_generate_call=True, **settings).numpy()

    return kept(make, model, "timestamps", features, settings)


@pytest.mark.parametrize(
    ("variant",), slow_unless([(name,) for name in PRESETS], lambda name: name in ("dedup", "el", "hybrid"))
)
def test_one_window_matches_generate(bundles: BundleCache, variant: str) -> None:
    model, runner = with_timestamps(bundles, variant)
    features, seen = features_of(runner, 4), set[int]()
    for settings in SETTINGS:
        how = {**settings, "return_timestamps": True}
        expected = expected_of(model, features, how)
        found = runner.generate_from_features(features, **how).sequences
        np.testing.assert_array_equal(found, expected, err_msg=str(settings))
        seen.update(found[found > 55].tolist())
    assert len(seen) > 5


def test_few_timestamps_at_the_beginning(bundles: BundleCache) -> None:
    """More beams than tokens that may come first, so that some beams have a score of -inf."""
    model, runner = with_timestamps(bundles, "el", max_initial_timestamp_index=1)
    features = features_of(runner, 4)
    for beams in (1, 2, 4, 6):
        settings: dict[str, Any] = {"num_beams": beams, "return_timestamps": True}
        expected = expected_of(model, features, settings)
        found = runner.generate_from_features(features, **settings).sequences
        np.testing.assert_array_equal(found, expected, err_msg=str(settings))
        assert set(found[:, 2].tolist()) <= {56, 57}


def test_rules_match_transformers_on_random_rows() -> None:
    """Every case of the rules, on rows of every length whose timestamps are likely or not."""
    from transformers import GenerationConfig
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    rng = np.random.default_rng(3)
    changed = 0
    for case in range(600):
        rules = TimestampRules(first=12, eos=8, latest_start=(None, 0, 3)[case % 3])
        config = GenerationConfig(
            no_timestamps_token_id=11, eos_token_id=8, max_initial_timestamp_index=rules.latest_start
        )
        tokens = rng.integers(0, 8, case % 7)
        stamped = rng.random(len(tokens)) < 0.6
        tokens[stamped] = np.sort(rng.integers(12, 20, int(stamped.sum())))
        row = rng.standard_normal(20).astype(np.float32) * 2
        row[12:] += rng.normal(-1, 2)
        row[rng.random(20) < 0.1] = -np.inf
        expected = WhisperTimeStampLogitsProcessor(config, begin_index=2)(
            torch.tensor([[9, 10, *tokens.tolist()]]), torch.from_numpy(row[None])
        )[0].numpy()
        found = row.copy()
        apply_timestamp_rules(rules, found, tokens)
        np.testing.assert_array_equal(found, expected, err_msg=f"{rules} {tokens}")
        changed += bool((found[:11] != row[:11]).any())
    assert 100 < changed < 550


def test_candidates_of_rows_are_the_best_of_all() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        scores = rng.integers(-4, 0, (3, 30)).astype(np.float32)  # with ties
        scores[rng.random((3, 30)) < 0.5] = -np.inf
        beam_scores = rng.integers(-3, 1, 3).astype(np.float32)
        found, beams, tokens = candidates_of_rows(list(scores), beam_scores, 7)
        totals = (scores + beam_scores[:, None]).reshape(-1)
        order = np.argsort(-totals, kind="stable")[:7]
        finite = np.isfinite(totals[order])
        np.testing.assert_array_equal(found, totals[order])
        np.testing.assert_array_equal((beams * 30 + tokens)[finite], order[finite])


@pytest.mark.parametrize(
    ("changes", "settings", "expected"),
    [
        ({"no_timestamps_token_id": None}, {}, "needs no_timestamps_token_id, which the checkpoint lacks"),
        ({"no_timestamps_token_id": 106}, {}, "needs tokens above no_timestamps_token_id=106, and this model has none"),
        ({}, {"eos_token_id": [45, 44]}, "needs one eos_token_id below the timestamps, which begin with 56"),
        ({}, {"max_initial_timestamp_index": -1}, "max_initial_timestamp_index=-1 .* is not an integer of at least 0"),
        (
            {},
            {"return_timestamps": "word"},
            "return_timestamps='word' .* is neither true nor false; pass True or",
        ),
        (
            {},
            {"trie": build_trie([[5]])},
            "trie=<.*> .from the call. does not go with return_timestamps; leave one out",
        ),
    ],
)
def test_impossible_settings_are_refused(
    bundles: BundleCache, changes: dict[str, Any], settings: dict[str, Any], expected: str
) -> None:
    runner = with_timestamps(bundles, "el", **changes)[1]
    with pytest.raises(GenerationError, match=expected):
        runner.options(**{"return_timestamps": True, **settings})


def test_a_runtime_without_logits_refuses_timestamps(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = with_timestamps(bundles, "el")[1]
    monkeypatch.setattr(OnnxRuntimeCpu, "logits_obstacle", "this decoder does not give;")
    with pytest.raises(
        GenerationError,
        match="return_timestamps=True needs all scores of a step, which this decoder does not give; pass "
        "return_timestamps=False",
    ):
        runner.options(return_timestamps=True)
