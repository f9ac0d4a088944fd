"""T5Gemma 2, of text, through every variant that it can have: token for token what ``model.generate`` returns."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.bundles.cache import BundleCache
from support.checkpoints.edits import edit_json, refusal
from support.checkpoints.families import DEFAULTS, CheckpointCache
from support.references.expected import expect_equal
from support.references.generate_runs import SETTINGS, runs_of
from support.slow_cases import slow_unless
from tightbeam.deploy import Runner
from tightbeam.export import export_model
from tightbeam.export.accuracy.calibration import calibrate
from tightbeam.export.accuracy.guard import guard
from tightbeam.export.accuracy.key_scales import choose_key_scales
from tightbeam.export.families.text.t5gemma2 import T5GEMMA2
from tightbeam.graph_passes import PRESETS, presets_of, same_for_all
from tightbeam.graph_passes.caches.kinds import why_not

VARIANTS = ("baseline", "dedup", "kcache")
ENCODER, DECODER = DEFAULTS["t5gemma2"]["encoder"], DEFAULTS["t5gemma2"]["decoder"]
SHAPES: tuple[dict[str, Any], ...] = (
    {  # biases, one kind of layer, an even window, no cap, no tied embeddings, several ends
        "decoder": {
            **{**DECODER, "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 14, "attention_bias": True},
            **{"layer_types": ["sliding_attention"] * 2, "sliding_window": 4, "final_logit_softcapping": None},
            **{"hidden_activation": "silu", "eos_token_id": [2, 7]},
        },
        "tie_word_embeddings": False,
    },
    {  # one key head, narrower than the model; a window of two; YaRN; no end of images in the vocabulary
        "decoder": {
            **{**DECODER, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 6, "num_hidden_layers": 1},
            **{"layer_types": ["full_attention"], "sliding_window": 2},
            "rope_parameters": {
                "full_attention": {
                    **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
                    "original_max_position_embeddings": 16,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
        "encoder": {**ENCODER, "eoi_token_index": 99},
        "eoi_token_index": 99,
    },
)


@pytest.mark.parametrize(
    ("variant",), slow_unless([(each,) for each in VARIANTS], lambda variant: variant != "baseline")
)
def test_tokens_and_scores_match_generate(bundles: BundleCache, variant: str) -> None:
    """Windows are shorter than sources and outputs, on both sides."""
    runner = Runner.load(bundles(variant, "t5gemma2"), threads=1)
    expect_equal(runner, bundles.trace("t5gemma2")[0].model, runs_of(runner, SETTINGS))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_other_shapes(bundles: BundleCache, shape: dict[str, Any]) -> None:
    model = bundles.trace("t5gemma2", **shape)[0].model
    for variant in VARIANTS if shape is SHAPES[0] else VARIANTS[:2]:
        runner = Runner.load(bundles(variant, "t5gemma2", **shape), threads=1)
        expect_equal(runner, model, runs_of(runner, SETTINGS[:8]))


@pytest.mark.parametrize("variant", ["kcache", "dedup"])
def test_function_bodies_run_without_the_library(
    bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    monkeypatch.setenv("TIGHTBEAM_LIBRARY", "none")
    runner = Runner.load(bundles(variant, "t5gemma2"), threads=1)
    expect_equal(runner, bundles.trace("t5gemma2")[0].model, runs_of(runner, SETTINGS[5:7]))


def test_variants_that_its_attention_cannot_have_say_why(bundles: BundleCache) -> None:
    sizes = bundles.trace("t5gemma2")[0].sizes
    assert tuple(presets_of(sizes)) == VARIANTS
    assert "keys made of cached inputs would not be normalised" in why_not(PRESETS["el"], sizes)
    assert "one softmax covers source and output" in why_not(PRESETS["hybrid"], sizes)


def test_weights_are_those_of_text_alone(bundles: BundleCache) -> None:
    model = bundles.trace("t5gemma2")[0].model
    counted = {name: tensor for name, tensor in model.named_parameters() if tensor.ndim > 1}
    images = {name for name in counted if "vision_tower" in name or "multi_modal_projector" in name}
    expected = sum(tensor.numel() for name, tensor in counted.items() if name not in images)
    assert images and T5GEMMA2.weights(model.config).total == expected


def test_the_guard_measures_the_merged_attention(bundles: BundleCache) -> None:
    checkpoint, canonical = bundles.trace("t5gemma2")
    activations = calibrate(checkpoint, None)
    _, found = guard(canonical, same_for_all(PRESETS["kcache"], canonical.sizes.L, ""), activations)
    assert [result.part for result in found] == ["source"] * 2 + ["generated"] * 2
    assert all(result.kept == result.wanted and 0 < result.error < 1e-5 for result in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"precision": "int8"}, {"cache_precision": "int8", "generated_cache_precision": "int8"}],
    ids=["fp32", "int8", "int8 caches"],
)
def test_an_export_is_compared_with_torch(
    checkpoints: CheckpointCache, tmp_path: Path, options: dict[str, Any]
) -> None:
    source = checkpoints("t5gemma2", tokenizer=True)
    bundle = export_model(source, tmp_path / "out", **options)
    assert bundle.manifest.parity is not None and bundle.manifest.parity.tokens > 100


@pytest.mark.parametrize(
    ("side", "changes", "expected"),
    [
        (
            "decoder",
            {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3},
            "hidden_size is 40 in the",
        ),
        ("decoder", {"vocab_size": 90}, "vocab_size is 99 in the encoder and 90 in the decoder"),
        ("decoder", {"sliding_window": None}, "decoder: sliding_window is None; transformers runs this model with a"),
        ("decoder", {"num_key_value_heads": 3}, "decoder: num_attention_heads 8 is not divisible by the 3 key heads"),
    ],
)
def test_configs_that_cannot_be_run_are_refused(
    checkpoints: CheckpointCache, tmp_path: Path, side: str, changes: dict[str, Any], expected: str
) -> None:
    folder = checkpoints.copy(tmp_path / "c", "t5gemma2")
    config = json.loads((folder / "config.json").read_text())
    edit_json(folder / "config.json", **{side: {**config[side], **changes}})
    assert re.search(expected, refusal(folder))


def test_keys_in_int8_are_not_scaled(bundles: BundleCache) -> None:
    """Scales of the output's keys would be in the queries, which read the source's keys too."""
    checkpoint, canonical = bundles.trace("t5gemma2")
    source, generated = calibrate(checkpoint, None)
    plan = same_for_all(PRESETS["dedup"], canonical.sizes.L, "")
    outliers = [replace(seen, key=seen.key * torch.tensor([64.0] + [1.0] * 9)) for seen in generated]
    found = choose_key_scales(canonical, plan, {"source": source, "generated": outliers})
    assert found == {"source": {}, "generated": {}}
