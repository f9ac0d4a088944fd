"""T5Gemma through every variant that it can have: token for token what ``model.generate`` returns."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.edits import edit_json, refusal
from support.checkpoints.families import DEFAULTS, CheckpointCache
from support.references.expected import expect_equal
from support.references.generate_runs import SETTINGS, runs_of
from tightbeam.deploy import Runner
from tightbeam.export import export_model
from tightbeam.export.accuracy.calibration import calibrate
from tightbeam.export.accuracy.guard import guard
from tightbeam.graph_passes import PRESETS, PassError, presets_of, same_for_all

VARIANTS = tuple(variant for variant in PRESETS if variant != "xcache")
ENCODER, DECODER = (DEFAULTS["t5gemma"][side] for side in ("encoder", "decoder"))
NO_CAPS = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
ROPE = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
SHAPES: tuple[dict[str, Any], ...] = (
    {  # a narrow encoder, biases on both sides, no caps, one kind of layer, no tied embeddings
        "encoder": {
            **{**ENCODER, **NO_CAPS, "hidden_size": 24, "num_attention_heads": 6, "head_dim": 8},
            **{"num_key_value_heads": 2, "attention_bias": True, "layer_types": ["sliding_attention"] * 2},
        },
        "decoder": {
            **{**DECODER, **NO_CAPS, "hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 5},
            **{"head_dim": 10, "attention_bias": True, "layer_types": ["full_attention"] * 2},
            **{"hidden_activation": "silu", "eos_token_id": [2, 7]},
        },
        "tie_word_embeddings": False,
    },
    {  # one key head, an odd number of query heads, angles that no default gives, biases beside caps
        "encoder": {**ENCODER, "head_dim": 6, "rope_parameters": {"rope_type": "yarn", **ROPE}},
        "decoder": {
            **{**DECODER, "hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 40},
            "attention_bias": True,
            **{"num_hidden_layers": 1, "rope_parameters": {"rope_type": "linear", **ROPE}, "sliding_window": 2},
        },
    },
)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_and_scores_match_generate(bundles: BundleCache, variant: str) -> None:
    """Windows are shorter than sources and outputs, on both sides."""
    runner = Runner.load(bundles(variant, "t5gemma"), threads=1)
    expect_equal(runner, bundles.trace("t5gemma")[0].model, runs_of(runner, SETTINGS))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_other_shapes(bundles: BundleCache, shape: dict[str, Any]) -> None:
    model = bundles.trace("t5gemma", **shape)[0].model
    uncapped = shape is SHAPES[0]
    if not uncapped:
        with pytest.raises(PassError, match="the keys of layer 0 have a bias, and their scores a cap"):
            bundles("el", "t5gemma", **shape)
    for variant in VARIANTS if uncapped else ("baseline", "dedup"):
        runner = Runner.load(bundles(variant, "t5gemma", **shape), threads=1)
        expect_equal(runner, model, runs_of(runner, SETTINGS[:8]))


@pytest.mark.parametrize("variant", ["slim", "dedup"])
def test_function_bodies_run_without_the_library(
    bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    monkeypatch.setenv("TIGHTBEAM_LIBRARY", "none")
    runner = Runner.load(bundles(variant, "t5gemma"), threads=1)
    expect_equal(runner, bundles.trace("t5gemma")[0].model, runs_of(runner, SETTINGS[5:7]))


def test_a_cache_of_inputs_is_refused(bundles: BundleCache) -> None:
    """The keys of self-attention are rotated; those of cross-attention are not, so that its states may be kept."""
    with pytest.raises(PassError, match="go through rotary positions"):
        bundles("xcache", "t5gemma")
    assert tuple(presets_of(bundles.trace("t5gemma")[0].sizes)) == VARIANTS


def test_the_guard_measures_both_attentions(bundles: BundleCache) -> None:
    checkpoint, canonical = bundles.trace("t5gemma")
    activations = calibrate(checkpoint, None)
    assert {each.softcap for part in activations for each in part} == {2.5}
    _, found = guard(canonical, same_for_all(PRESETS["hybrid"], canonical.sizes.L, ""), activations)
    assert [result.part for result in found] == ["source"] * 2 + ["generated"] * 2
    assert all(result.kept == result.wanted and 0 < result.error < 1e-5 for result in found)


@pytest.mark.slow
def test_an_export_is_compared_with_torch(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    bundle = export_model(checkpoints("t5gemma", tokenizer=True), tmp_path / "out", variant="slim")
    assert bundle.manifest.parity is not None and bundle.manifest.parity.tokens > 100


@pytest.mark.parametrize(
    ("side", "changes", "expected"),
    [
        ("encoder", {"sliding_window": None}, "encoder: sliding_window is None; transformers runs this model with a"),
        (
            "decoder",
            {"layer_types": ["chunked_attention"] * 2},
            "decoder: layer_types has 'chunked_attention'; expected",
        ),
        (
            "decoder",
            {"num_key_value_heads": 0},
            "decoder: num_key_value_heads is 0; expected a whole number of at least",
        ),
        ("encoder", {"attn_logit_softcapping": 0.0}, "encoder: attn_logit_softcapping is 0.0; expected a number above"),
        ("decoder", {"num_key_value_heads": 4}, "decoder: num_attention_heads 6 is not divisible by the 4 key heads"),
        ("encoder", {"hidden_size": 42}, "encoder: hidden_size 42 is not divisible by num_attention_heads 4"),
    ],
)
def test_configs_that_cannot_be_run_are_refused(
    checkpoints: CheckpointCache, tmp_path: Path, side: str, changes: dict[str, Any], expected: str
) -> None:
    folder = checkpoints.copy(tmp_path / "c", "t5gemma")
    config = (folder / "config.json").read_text()
    edit_json(folder / "config.json", **{side: {**json.loads(config)[side], **changes}})
    assert re.search(expected, refusal(folder))
