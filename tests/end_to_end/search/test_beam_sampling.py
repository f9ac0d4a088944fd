"""Beam sampling from bundles against `model.generate`, whose draws are made ours; and the same tokens in any batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.commands import caller
from support.references.causal_runs import prompts
from support.references.expected import generate
from support.references.generate_runs import batch
from support.references.warpers import draws_of_ours
from support.runtimes.session_in_memory import in_memory
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.sampling import Sampling
from tightbeam.deploy.tries.build import build_trie

SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_beams": 3},
    {"num_beams": 4, "temperature": 1.6, "top_k": 20, "num_return_sequences": 3, "length_penalty": 0.0},
    {"num_beams": 3, "top_k": 0, "top_p": 0.7, "temperature": 0.8, "early_stopping": True},
    {"num_beams": 2, "top_k": 0, "eos_token_id": [2, 17], "min_new_tokens": 3, "length_penalty": 2.0},
    {"num_beams": 5, "top_p": 0.95, "repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "early_stopping": "never"},
    {"num_beams": 3, "typical_p": 0.7, "min_p": 0.01, "bad_words_ids": [[9], [12, 13]], "suppress_tokens": [5, 6]},
    {"num_beams": 2, "eos_token_id": [2, 7, 11, 17, 23, 29], "top_k": 2, "num_return_sequences": 2},
    {"num_beams": 3, "top_k": 30, "forced_bos_token_id": 8, "forced_eos_token_id": 2, "temperature": 2.5},
)
LENGTHS = (11, 4, 1)


@pytest.fixture(scope="module")
def runner(bundles: BundleCache) -> Runner:
    return Runner.load(bundles("dedup"), threads=1)


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
def test_tokens_are_those_of_generate_with_our_draws(
    runner: Runner, bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    model = bundles.trace("bart")[0].model
    asked = {"do_sample": True, "max_new_tokens": 10, **settings}
    for seed in range(3):
        ids, mask = batch(runner.manifest.sizes.source_vocabulary, seed, LENGTHS)
        keyed = [Sampling(seed=seed).for_input(row[own > 0]) for row, own in zip(ids, mask, strict=True)]
        with draws_of_ours(monkeypatch, [each.uniforms(0, 400) for each in keyed]):
            expected = generate(model, ids, mask, asked)
        found = runner.generate(ids, mask, seed=seed, **asked)
        np.testing.assert_array_equal(found.sequences, expected.sequences.numpy())
        np.testing.assert_allclose(found.scores, expected.sequences_scores.numpy(), rtol=2e-5)


@pytest.mark.parametrize("settings", [{}, {"top_k": 0, "num_return_sequences": 2}], ids=repr)
def test_seed_gives_the_same_tokens_in_any_batch(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: dict[str, Any]
) -> None:
    """Alone, in a batch, joining others, as a line with settings of its own; another seed gives others."""
    asked = {"do_sample": True, "num_beams": 3, "max_new_tokens": 8, "temperature": 1.5, "seed": 11, **settings}
    returned = settings.get("num_return_sequences", 1)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 5, (7, 3, 9, 1, 5))
    rows = [row[own > 0].tolist() for row, own in zip(ids, mask, strict=True)]
    together = runner.generate(ids, mask, **asked)
    samples = [runner.sample(number, row, asked) for number, row in enumerate(rows)]
    scheduled = runner.scheduler(2 * samples[0].options.num_beams).run(samples)
    lines = [{"ids": row, **(asked if index != 2 else {"num_beams": 3})} for index, row in enumerate(rows)]
    stdin = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    done = caller(monkeypatch, capsys)(
        runner.bundle.path, "--json", "--ids", "--json-input", "ids", "--max-rows=9", stdin=stdin
    ).succeeded()
    for index, (row, record) in enumerate(zip(rows, done.records, strict=True)):
        alone = runner.generate([row], **asked)
        width = alone.sequences.shape[1]
        np.testing.assert_array_equal(together.of(index, returned).sequences[:, :width], alone.sequences)
        np.testing.assert_array_equal(scheduled[index].sequences, alone.sequences)
        assert scheduled[index].scores is not None
        np.testing.assert_allclose(scheduled[index].scores, alone.scores, rtol=1e-5)
        ended = record["tokens"] == alone.sequences[0].tolist()[: len(record["tokens"])]
        assert ended is (index != 2)
    again = runner.generate(ids, mask, **{**asked, "seed": 12})
    assert again.sequences.tolist() != together.sequences.tolist()


def test_command(runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--do-sample", "--num-beams=3", "--num-return-sequences=3", "--seed=4", "--temperature=1.4"]
    done = caller(monkeypatch, capsys)(runner.bundle.path, "--json", "--ids", *asked, stdin=b"[5, 6, 7]\n").succeeded()
    settings = {"do_sample": True, "num_beams": 3, "num_return_sequences": 3, "seed": 4, "temperature": 1.4}
    alone = runner.generate([[5, 6, 7]], **settings)
    assert alone.scores is not None and sorted(alone.scores, reverse=True) == alone.scores.tolist()
    for found, row in zip(done.records[0]["sequences"], alone.sequences.tolist(), strict=True):
        assert found == row[: len(found)]


@pytest.mark.parametrize("top_k", [20, 0])
def test_prompts_and_tries(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, top_k: int) -> None:
    """A decoder-only model, and a trie of fewer entries than are drawn."""
    asked = {"do_sample": True, "num_beams": 3, "max_new_tokens": 8, "top_k": top_k, "temperature": 1.5}
    model, (ids, mask) = bundles.trace("gpt2")[0].model, prompts((9, 4, 1), 3)
    runner = Runner.load(bundles("dedup", "gpt2"), threads=1)
    keyed = [Sampling(seed=2).for_input(row[own > 0]) for row, own in zip(ids, mask, strict=True)]
    with draws_of_ours(monkeypatch, [each.uniforms(0, 400) for each in keyed]):
        expected = generate(model, ids, mask, asked)
    np.testing.assert_array_equal(runner.generate(ids, mask, seed=2, **asked).sequences, expected.sequences.numpy())
    entries = [[7, 8, 2], [7, 9, 2], [30, 2], [7, 2]]
    found = Runner.load(bundles("dedup"), threads=1).generate(
        [[5, 6, 7]], trie=build_trie(entries), seed=1, num_return_sequences=3, **asked
    )
    assert found.scores is not None
    real = {tuple(token for token in row[1:] if token != 1) for row in found.sequences[found.scores > -1e7].tolist()}
    assert real <= set(map(tuple, entries)) and len(real) == (found.scores > -1e7).sum() > 1


def test_a_bundle_that_takes_no_groups_refuses_it() -> None:
    old = Runner.load(Path(__file__).resolve().parents[2] / "data" / "bundle-format-2", threads=1)
    with pytest.raises(GenerationError, match=r"do_sample with num_beams=2 cannot be used: .*; export the model again"):
        old.generate([[5, 6]], do_sample=True, num_beams=2)
    with pytest.raises(
        GenerationError, match=r"top_k=0 needs all scores of a step, which this bundle.* pass top_k=1 to"
    ):
        old.generate([[5, 6]], do_sample=True, num_beams=2, top_k=0)


@pytest.mark.parametrize("top_k", [20, 0])
def test_a_runtime_of_a_gpu(runner: Runner, top_k: int) -> None:
    """Candidates of each beam, or whole rows, out of another memory."""
    asked = {"do_sample": True, "num_beams": 3, "max_new_tokens": 8, "top_k": top_k, "temperature": 1.5, "seed": 11}
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 5, (7, 3, 9))
    made = in_memory(runner.bundle.path)
    found = made.runner.generate(ids, mask, **asked)
    np.testing.assert_array_equal(found.sequences, runner.generate(ids, mask, **asked).sequences)
