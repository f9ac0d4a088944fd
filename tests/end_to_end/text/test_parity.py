"""Every family through every variant and search setting: token for token what ``model.generate`` returns."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from support.bundles.cache import BundleCache
from support.references.expected import expect_equal
from support.references.generate_runs import SETTINGS, batch, runs_of
from support.slow_cases import STOOD_FOR, slow_unless
from tightbeam.deploy import Runner
from tightbeam.export.writing.entries import sizes_of
from tightbeam.graph_passes import PRESETS, RunSize

FAMILIES = ("bart", "pegasus", "mbart", "marian", "fsmt", "t5", "mt5", "umt5", "prophetnet")
EVERY_VARIANT = ("bart", "t5", "prophetnet")
RELATED = ("m2m_100", "seamless_m4t", "seamless_m4t_v2", "blenderbot", "blenderbot-small", "longt5", "led")
"""Families with the decoder of another: they differ in positions, heads and encoders, which no variant touches.
LED has its default run in test_long_encoders.py, with global attention."""


@pytest.mark.parametrize(
    ("variant", "family"),
    slow_unless(
        itertools.product(PRESETS, FAMILIES + RELATED),
        lambda variant, family: family in EVERY_VARIANT or (family not in STOOD_FOR and variant == "dedup"),
    ),
)
def test_tokens_and_scores_match_generate(bundles: BundleCache, variant: str, family: str) -> None:
    model = bundles.trace(family)[0].model
    runner = Runner.load(bundles(variant, family), threads=1)
    expect_equal(runner, model, runs_of(runner, SETTINGS))


ONE_LAYER = {"encoder_layers": 1, "decoder_layers": 1}
SHAPES: tuple[dict[str, Any], ...] = (
    {
        **{"activation_function": "gelu_new", "d_model": 24, "tie_word_embeddings": False, "decoder_ffn_dim": 7},
        **{"decoder_attention_heads": 1, "encoder_attention_heads": 1, **ONE_LAYER},
    },
    {"activation_function": "quick_gelu", "encoder_ffn_dim": 5, **ONE_LAYER},
    {
        **{"activation_function": "relu", "scale_embedding": False, "d_model": 40},
        **{"decoder_attention_heads": 5, "encoder_layers": 1, "decoder_layers": 2},
    },
    {"activation_function": "tanh", "vocab_size": 64, "decoder_layers": 1, "encoder_layers": 2},
    {
        **{"activation_function": "silu", "d_model": 66, "decoder_attention_heads": 11},
        **{"encoder_attention_heads": 3, "encoder_layers": 1, "decoder_layers": 2},
    },
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    SHAPES,
    ids=lambda shape: shape["activation_function"],
)
def test_odd_sizes_and_activations(bundles: BundleCache, shape: dict[str, Any]) -> None:
    model = bundles.trace("bart", seed=9, **shape)[0].model
    for variant in PRESETS:
        runner = Runner.load(bundles(variant, "bart", seed=9, **shape), threads=1)
        expect_equal(runner, model, runs_of(runner, SETTINGS[4:]))


def test_the_longest_source_and_output(bundles: BundleCache) -> None:
    """Every position of the model is used, on both sides."""
    model = bundles.trace("bart")[0].model
    for variant in PRESETS:
        runner = Runner.load(bundles(variant, "bart"), threads=1)
        limit = runner.manifest.sizes.max_source
        ids, mask = batch(runner.manifest.sizes.source_vocabulary, 1, (limit, limit - 1))
        lengths = {"max_length": limit, "min_length": limit}
        expect_equal(runner, model, [(ids, mask, {"num_beams": beams, **lengths}) for beams in (1, 2, 3, 5)])


def test_without_a_mask_every_position_counts(bundles: BundleCache) -> None:
    model = bundles.trace("bart")[0].model
    runner = Runner.load(bundles("el", "bart"), threads=1)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 4)
    ids[mask == 0] = 1  # the pad token
    settings = {"num_beams": 3, "max_new_tokens": 9}
    with torch.no_grad():
        expected = model.generate(torch.tensor(ids), **settings)
    np.testing.assert_array_equal(runner.generate(ids, **settings).sequences, expected.numpy())


@pytest.mark.parametrize("variant", PRESETS)
def test_allocated_cache_bytes_match_the_formula(bundles: BundleCache, variant: str) -> None:
    runner = Runner.load(bundles(variant, "bart"), threads=1)
    sizes = sizes_of(runner.manifest)
    for lengths, beams in itertools.product(((9, 3), (5, 5, 2)), (1, 4)):
        ids, mask = batch(sizes.source_vocabulary, 0, lengths)
        settings = {"num_beams": beams, "max_new_tokens": 7, "min_new_tokens": 7, "no_repeat_ngram_size": 0}
        runner.generate(ids, mask, **settings)
        run_size = RunSize(B=len(lengths), M=beams, N=max(lengths), T=7)
        assert runner.cache_bytes == PRESETS[variant].cache_bytes(sizes, run_size)


def test_el_caches_2LM_times_less_than_the_baseline(bundles: BundleCache) -> None:
    cached = {}
    for variant in ("baseline", "el"):
        runner = Runner.load(bundles(variant, "bart"), threads=1)
        ids, mask = batch(runner.manifest.sizes.source_vocabulary, 0)
        runner.generate(ids, mask, num_beams=4, max_new_tokens=2)
        cached[variant] = runner.cache_bytes[0]
    assert cached["baseline"] == 2 * runner.manifest.sizes.L * 4 * cached["el"]


RENORMALISED: tuple[dict[str, Any], ...] = (
    {"num_beams": 4, "bad_words_ids": [[98], [5], [9], [12, 13]], "suppress_tokens": list(range(30, 60))},
    {"num_beams": 3, "num_return_sequences": 3, "repetition_penalty": 1.7, "no_repeat_ngram_size": 2},
    {"num_beams": 2, "forced_bos_token_id": 8, "forced_eos_token_id": [0, 7], "length_penalty": 2.0},
    {"num_beams": 1, "bad_words_ids": [[5]]},
)


def test_renormalised_log_probabilities(bundles: BundleCache) -> None:
    """The published OPUS-MT translators ask for them. Many tokens are banned here, which changes what is found."""
    model = bundles.trace("marian")[0].model
    runner = Runner.load(bundles("dedup", "marian"), threads=1)
    runs = list(runs_of(runner, [{**own, "renormalize_logits": True} for own in RENORMALISED]))
    expect_equal(runner, model, runs)
    ids, mask, asked = runs[0]
    found = runner.generate(ids, mask, **asked, return_token_scores=True)
    plain = runner.generate(ids, mask, **{**asked, "renormalize_logits": False})
    assert found.scores is not None and plain.scores is not None and found.token_scores is not None
    assert (found.scores > plain.scores).all()
    new = (found.sequences[:, 1:] != model.config.pad_token_id).sum(axis=1)  # no sequence holds it, since it is banned
    np.testing.assert_allclose(found.token_scores.sum(axis=1) / new, found.scores, rtol=1e-5)
