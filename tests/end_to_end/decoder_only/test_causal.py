"""Decoder-only models through every variant they can have: token for token what ``model.generate`` returns."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from transformers import NoRepeatNGramLogitsProcessor

from support.bundles.cache import BundleCache
from support.checkpoints.causal import CAUSAL_CLASSES
from support.references.causal_runs import ALL_VARIANTS, SETTINGS, VARIANTS, prompts, runs
from support.references.expected import expect_equal, generate
from support.slow_cases import STOOD_FOR, slow_unless
from tightbeam.deploy import GenerationError, InputError, Runner
from tightbeam.deploy.runtimes._padded_history import banned_by_padding
from tightbeam.export.accuracy.compare import Sources
from tightbeam.export.writing.entries import sizes_of
from tightbeam.graph_passes import PRESETS, PassError, RunSize, presets_of

WITHOUT_LIBRARY = [
    *(("gpt2", variant) for variant in ALL_VARIANTS),
    ("mistral", "dedup"),
    ("gemma", "dedup"),
    ("gemma2", "kcache"),
    ("bloom", "dedup"),
    ("bloom", "slim"),
    ("gpt_neox", "kcache"),
    ("olmo", "kcache"),
]


@pytest.mark.parametrize(
    ("family", "variant"),
    slow_unless(
        [(family, variant) for family in CAUSAL_CLASSES for variant in VARIANTS.get(family, ("dedup",))],
        lambda family, variant: (
            family == "gpt2" or (family not in STOOD_FOR and variant in ("dedup", VARIANTS.get(family, ("dedup",))[-1]))
        ),
    ),
)
def test_tokens_and_scores_match_generate(bundles: BundleCache, family: str, variant: str) -> None:
    runner = Runner.load(bundles(variant, family), threads=1)
    expect_equal(runner, bundles.trace(family)[0].model, runs())


@pytest.mark.parametrize(("family", "variant"), WITHOUT_LIBRARY)
def test_function_bodies_run_without_the_library(
    bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, family: str, variant: str
) -> None:
    """A prompt of one token leaves the prefix empty: it has no weight and gives no NaN."""
    monkeypatch.setenv("TIGHTBEAM_LIBRARY", "none")
    runner = Runner.load(bundles(variant, family), threads=1)
    expect_equal(runner, bundles.trace(family)[0].model, runs())


@pytest.mark.parametrize(
    ("family", "variant"),
    [("gpt2", variant) for variant in ALL_VARIANTS] + [("llama", "dedup"), ("gpt_neox", "kcache")],
)
def test_allocated_cache_bytes_match_the_formula(bundles: BundleCache, family: str, variant: str) -> None:
    runner = Runner.load(bundles(variant, family), threads=1)
    sizes = sizes_of(runner.manifest)
    for lengths, beams in itertools.product(((9, 3), (5, 5, 2), (1,)), (1, 4)):
        runner.generate(*prompts(lengths, 0), num_beams=beams, max_new_tokens=7, min_new_tokens=7)
        run_size = RunSize(B=len(lengths), M=beams, N=max(1, max(lengths) - 1), T=7)
        assert runner.cache_bytes == PRESETS[variant].cache_bytes(sizes, run_size)


def test_left_and_right_padding_are_equivalent(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", "llama"), threads=1)
    for settings in SETTINGS[1], SETTINGS[5]:
        left, right = (
            runner.generate(*prompts((7, 2, 4), 3, side), max_new_tokens=9, **settings).sequences
            for side in ("left", "right")
        )
        assert left.shape == right.shape
        ids, mask = prompts((7, 2, 4), 3, "right")
        left_padded = np.stack([np.roll(row, 7 - count) for row, count in zip(ids, mask.sum(axis=1), strict=True)])
        np.testing.assert_array_equal(right[:, :7], left_padded)
        again = runner.generate(left_padded, np.sort(mask, axis=1), max_new_tokens=9, **settings).sequences
        np.testing.assert_array_equal(right, again)


def test_without_a_mask_pad_tokens_do_not_count_as_in_transformers(bundles: BundleCache) -> None:
    model = bundles.trace("gpt2")[0].model
    runner = Runner.load(bundles("dedup", "gpt2"), threads=1)
    ids, _ = prompts((6, 2, 4), 3)
    for ends in (2, 1):  # a pad token that may end a sequence counts
        settings = {"num_beams": 3, "max_new_tokens": 9, "eos_token_id": ends}
        with torch.no_grad():
            expected = model.generate(torch.tensor(ids), **settings)
        np.testing.assert_array_equal(runner.generate(ids, **settings).sequences, expected.numpy())


@pytest.mark.parametrize("size", range(5))
@pytest.mark.parametrize("num_beams", [1, 3])
def test_ngrams_count_padding_and_penalties_do_not(bundles: BundleCache, size: int, num_beams: int) -> None:
    """The padding is a token that the model often generates."""
    model = bundles.trace("llama")[0].model
    runner = Runner.load(bundles("dedup", "llama"), threads=1)
    ids, mask = prompts((3, 9), 5)
    favourite = int(np.bincount(runner.generate(ids, mask, num_beams=1, max_new_tokens=20).sequences[0, 9:]).argmax())
    ids, mask = prompts((3, 9), 5, pad=favourite)
    settings = {"num_beams": num_beams, "no_repeat_ngram_size": size, "repetition_penalty": 1.1, "max_new_tokens": 20}
    expected = generate(model, ids, mask, settings)
    np.testing.assert_array_equal(runner.generate(ids, mask, **settings).sequences, expected.sequences.numpy())


@pytest.mark.parametrize("size", range(1, 5))
def test_tokens_banned_by_padding_match_transformers(size: int) -> None:
    generator = np.random.default_rng(size)
    for length in range(1, 9):
        history = generator.integers(0, 2, (3, 2, length))
        padding = generator.integers(0, length, 3)
        for b, m in itertools.product(range(3), range(2)):
            found = banned_by_padding(history[b], int(padding[b]), size)
            rows = [history[b, m], history[b, m, padding[b] :]]
            banned = [_banned(row, size) if len(row) >= 1 else set() for row in rows]
            assert banned[1] | set(found[m].tolist()) - {-1} == banned[0], (history[b, m], padding[b])


def _banned(row: Any, size: int) -> set[int]:
    scores = NoRepeatNGramLogitsProcessor(size)(torch.tensor(row)[None], torch.zeros((1, 2)))
    return set(np.flatnonzero(np.isneginf(scores.numpy()[0])).tolist())


def test_finished_samples_are_compacted_away(bundles: BundleCache) -> None:
    """Sequences of very different lengths and padded prompts, so that compaction moves rows."""
    model = bundles.trace("llama")[0].model
    ids, mask = prompts((3, 9, 1, 6, 2, 8), 8)
    ended = set()
    for variant, num_beams in itertools.product(("baseline", "dedup"), (1, 3)):
        runner = Runner.load(bundles(variant, "llama"), threads=1)
        settings = {
            "num_beams": num_beams,
            "max_new_tokens": 24,
            "eos_token_id": list(range(2, 40, 3)),
            "repetition_penalty": 1.2,
            "no_repeat_ngram_size": 2,
        }
        expected = generate(model, ids, mask, settings)
        found = runner.generate(ids, mask, **settings).sequences
        np.testing.assert_array_equal(found, expected.sequences.numpy())
        ended |= {int(np.isin(row, settings["eos_token_id"]).argmax()) for row in found[:, 9:]}
    assert len(ended) > 2


def test_lengths_count_the_prompt(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", "gpt2"), threads=1)
    ids, mask = prompts((6, 2), 3)
    assert runner.generate(ids, mask, num_beams=1, max_length=9, eos_token_id=None).sequences.shape == (2, 9)
    assert runner.generate(ids, mask, num_beams=1).sequences.shape[1] <= 6 + 20
    full = runner.generate(ids, mask, num_beams=2, max_new_tokens=58, min_new_tokens=58).sequences
    assert full.shape == (2, 64)
    with pytest.raises(GenerationError, match=r"max_length=6 .* counts the 6 tokens of the prompt; pass 7 or more, or"):
        runner.generate(ids, mask, max_length=6)
    with pytest.raises(GenerationError, match=r"makes sequences of 65 tokens, .* 64 positions; pass max_new_tokens=58"):
        runner.generate(ids, mask, max_new_tokens=59)
    with pytest.raises(
        InputError, match="has 64 positions, more than the 63 that a prompt may have, since one of 64 is"
    ):
        runner.generate(np.full((1, 64), 5))
    with pytest.raises(InputError, match="attention_mask has a gap in sample 1; expected a prompt in one piece"):
        runner.generate(np.full((2, 3), 5), np.array([[0, 1, 1], [1, 0, 1]]))
    with pytest.raises(InputError, match="sample 0 has no token that attention_mask lets through"):
        runner.generate(np.full((1, 3), 5), np.zeros((1, 3), np.int64))


def test_prompt_is_left_padded_and_split() -> None:
    sources = Sources.of_rows([[5, 6, 7], [8], [9, 10, 11]], decoder_only=True)
    assert sources.prompts is not None
    assert sources.prompts.tokens.tolist() == [[5, 6, 7], [0, 0, 8], [9, 10, 11]]
    assert sources.source.tolist() == [[5, 6], [0, 0], [9, 10]]
    assert sources.mask.tolist() == [[1, 1], [0, 0], [1, 1]]
    assert sources.prompts.first_positions.tolist() == [2, 0, 2]
    assert Sources.of_rows([[8]], decoder_only=True).source.tolist() == [[0]]


REFUSED = [
    *[
        ("llama", variant, r"go through rotary positions \(RoPE\) before their scores")
        for variant in ("el", "xcache", "slim")
    ],
    ("llama", "kcache", "the keys of layer 0 have 12 numbers and are made of 36"),
    ("gemma3_text", "el", r"go through a norm \(RMSNormalization\) and rotary positions \(RoPE\) before"),
    (
        "gpt2",
        "hybrid",
        "a decoder-only model or one with merged attention has no cache 'first-k'; expected one of",
    ),
    ("falcon", "el", r"prompt_inputs: the keys of layer 0 go through rotary positions \(RoPE\)"),
    ("gpt_bigcode", "kcache", "the keys of layer 0 have 12 numbers and are made of 36"),
    ("gpt_bigcode", "slim", "the keys of layer 0 have 12 numbers and are made of 36"),
]


@pytest.mark.parametrize(("family", "variant", "reason"), REFUSED)
def test_an_impossible_variant_is_refused_with_the_reason(
    bundles: BundleCache, family: str, variant: str, reason: str
) -> None:
    with pytest.raises(PassError, match=reason):
        bundles(variant, family)
    assert variant not in presets_of(bundles.trace(family)[0].sizes)
