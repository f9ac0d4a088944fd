"""Scores of single tokens and their alternatives, against `compute_transition_scores` over the scores of `generate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.bundles.cache import BundleCache
from support.commands import caller
from support.references.causal_runs import prompts
from support.references.expected import generate
from support.references.generate_runs import batch
from support.references.warpers import draws_of_ours
from support.tolerance import assert_runs_close
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.sampling import Sampling
from tightbeam.deploy.scheduling.events import NullEvents
from tightbeam.deploy.scheduling.scheduler import FinishedSample
from tightbeam.deploy.search import SearchResult
from tightbeam.deploy.tries.build import build_trie

Array = Any
OLD = Path(__file__).resolve().parents[2] / "data" / "bundle-format-2"
NEW = 9
SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_beams": 1, "return_alternatives": 5},
    {"num_beams": 1, "normalize_logits": False, "no_repeat_ngram_size": 2, "repetition_penalty": 1.4},
    {"num_beams": 1, "eos_token_id": [2, 7, 11], "suppress_tokens": [5, 6], "forced_bos_token_id": 8},
    {"num_beams": 4, "num_return_sequences": 4, "return_alternatives": 3},
    {"num_beams": 3, "normalize_logits": True, "no_repeat_ngram_size": 1, "num_return_sequences": 2},
    {"num_beams": 5, "eos_token_id": [2, 7, 11], "num_return_sequences": 5, "length_penalty": 0.5},
    {"num_beams": 4, "forced_eos_token_id": 3, "forced_bos_token_id": 8, "repetition_penalty": 0.8},
    {"num_beams": 4, "bad_words_ids": [[9], [12, 13]], "early_stopping": True, "num_return_sequences": 3},
)
SAMPLED: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.6, "top_k": 5, "top_p": 0.9, "normalize_logits": False},
    {"top_k": 0, "temperature": 1.3},
    {"top_k": 0, "top_p": 0.7, "min_p": 0.02},
    {"top_k": 0, "typical_p": 0.8, "num_return_sequences": 2},
    {"top_k": 20, "num_return_sequences": 3, "eos_token_id": [2, 7, 11], "repetition_penalty": 1.3},
    {"forced_eos_token_id": [3, 4], "num_return_sequences": 2},
    {"num_beams": 3, "temperature": 1.6, "top_p": 0.9, "num_return_sequences": 2},
    {"num_beams": 3, "top_k": 0, "eos_token_id": [2, 7, 11], "normalize_logits": True},
)


def of_torch(model: Any, ids: Array, mask: Array, asked: dict[str, Any], **how: Any) -> tuple[Array, Array, Array]:
    """Sequences, their transition scores [S, T], 0 behind the end, and the scores [S, T, vocabulary] that each token
    was chosen by."""
    own = {name: value for name, value in asked.items() if name not in ("return_alternatives", "normalize_logits")}
    found = generate(model, ids, mask, {**own, **how})
    beams = found.get("beam_indices")
    normalize = asked.get("normalize_logits", beams is None)
    kept = model.compute_transition_scores(found.sequences, found.scores, beams, normalize_logits=normalize).numpy()
    T = kept.shape[1]
    scores = torch.stack(found.scores)
    rows = torch.arange(scores.shape[1])[:, None].expand(-1, T) if beams is None else beams[:, :T].clamp(min=0)
    chosen = (torch.log_softmax(scores, -1) if normalize else scores)[torch.arange(T), rows].numpy()
    if beams is None:  # else those behind the end are 0 already
        ends = np.isin(found.sequences[:, -T:], asked.get("eos_token_id", 2))
        kept = np.where(ends.cumsum(axis=1) - ends > 0, 0, kept)
    return found.sequences.numpy(), kept, chosen


def compared(found: SearchResult, model: Any, ids: Array, mask: Array, asked: dict[str, Any], **how: Any) -> Any:
    """Assert equal tokens, and scores within the tolerance; returns what the tolerance is measured by."""
    sequences, naive, chosen = of_torch(model, ids, mask, asked, **how)
    np.testing.assert_array_equal(found.sequences, sequences)
    assert found.token_scores is not None
    try:
        exact = of_torch(model.double(), ids, mask, asked, **how)[1]
    finally:
        model.float()
    if found.alternatives is not None:
        compare_alternatives(found, chosen)
    assert found.token_scores.shape == naive.shape
    return found.token_scores, exact, naive


def compare_alternatives(found: SearchResult, chosen: Array) -> None:
    """The best tokens by the scores [S, T, vocabulary] of torch, best first, where a sequence has not ended."""
    assert found.alternatives is not None and found.token_scores is not None
    tokens, scores = found.alternatives.tokens, found.alternatives.scores
    S, T, n = tokens.shape
    for row in range(S):
        for t in range(T):
            if (tokens[row, t] < 0).all():  # behind the end
                assert found.token_scores[row, t] == 0
                continue
            own, there = chosen[row, t], tokens[row, t][tokens[row, t] >= 0]
            np.testing.assert_allclose(scores[row, t, : len(there)], own[there], rtol=1e-5, atol=1e-5)
            expected = -np.sort(-own)[:n]
            np.testing.assert_allclose(scores[row, t], expected, rtol=1e-5, atol=1e-5)
            assert len(set(there.tolist())) == len(there)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_equal_to_transition_scores(bundles: BundleCache, family: str) -> None:
    model = bundles.trace(family)[0].model
    runner = Runner.load(bundles("dedup", family), threads=1)
    runs = []
    for index, own in enumerate(SETTINGS):
        ids, mask = batch(runner.manifest.sizes.source_vocabulary, index)
        asked = {"max_new_tokens": NEW, **own}
        found = runner.generate(ids, mask, return_token_scores=True, **asked)
        runs.append(compared(found, model, ids, mask, asked))
    assert_runs_close(runs)


@pytest.mark.parametrize("own", SAMPLED, ids=repr)
def test_sampling(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, own: dict[str, Any]) -> None:
    model = bundles.trace("bart")[0].model
    runner = Runner.load(bundles("dedup"), threads=1)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 4)
    asked = {"do_sample": True, "max_new_tokens": NEW, "return_alternatives": 4, **own}
    found = runner.generate(ids, mask, seed=3, return_token_scores=True, **asked)
    keyed = [Sampling(seed=3).for_input(row[used > 0]) for row, used in zip(ids, mask, strict=True)]
    streams = 1 if "num_beams" in own else own.get("num_return_sequences", 1)
    numbers = [each.uniforms(sequence, 200) for each in keyed for sequence in range(streams)]
    with draws_of_ours(monkeypatch, numbers):
        sequences, naive, chosen = of_torch(model, ids, mask, asked)
    np.testing.assert_array_equal(found.sequences, sequences)
    compare_alternatives(found, chosen)
    with draws_of_ours(monkeypatch, numbers):
        try:
            exact = of_torch(model.double(), ids, mask, asked)[1]
        finally:
            model.float()
    assert_runs_close([(found.token_scores, exact, naive)])


def test_ragged_prompts_of_a_decoder_only_model(bundles: BundleCache) -> None:
    """Rows of several lengths are run apart; each has the scores that it has alone, from its first new token on."""
    model = bundles.trace("gpt2")[0].model
    runner = Runner.load(bundles("dedup", "gpt2"), threads=1)
    runs = []
    for beams, asked in ((1, {"repetition_penalty": 1.3}), (3, {"num_return_sequences": 2})):
        ids, mask = prompts((9, 4, 1), 3)
        rows = [row[own > 0].tolist() for row, own in zip(ids, mask, strict=True)]
        own = {"num_beams": beams, "max_new_tokens": NEW, "return_alternatives": 2, **asked}
        together = runner.generate(rows, return_token_scores=True, **own)
        assert together.token_scores is not None and together.alternatives is not None
        count = own.get("num_return_sequences", 1)
        for sample, row in enumerate(rows):
            alone = runner.generate([row], return_token_scores=True, **own)
            runs.append(compared(alone, model, np.array([row]), np.ones((1, len(row)), np.int64), own))
            assert alone.token_scores is not None and alone.alternatives is not None
            T = alone.token_scores.shape[1]
            part = together.of(sample, count)
            assert part.token_scores is not None and part.alternatives is not None
            np.testing.assert_array_equal(part.token_scores[:, :T], alone.token_scores)
            np.testing.assert_array_equal(part.alternatives.tokens[:, :T], alone.alternatives.tokens)
            assert not part.token_scores[:, T:].any()
    assert_runs_close(runs)


def test_beginnings_are_not_scored(bundles: BundleCache) -> None:
    model = bundles.trace("bart")[0].model
    runner = Runner.load(bundles("dedup"), threads=1)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 2)
    runs = []
    for beams in (1, 3):
        asked = {"num_beams": beams, "max_new_tokens": NEW}
        beginning = torch.tensor([[2, 9, 8]] * len(ids))
        given = beginning.tolist()
        found = runner.generate(ids, mask, decoder_input_ids=given, return_token_scores=True, **asked)
        runs.append(compared(found, model, ids, mask, asked, decoder_input_ids=beginning))
        given[1] = [2]
        mixed = runner.generate(ids, mask, decoder_input_ids=given, return_token_scores=True, **asked)
        alone = runner.generate(ids[1:2], mask[1:2], return_token_scores=True, **asked)
        assert mixed.token_scores is not None and alone.token_scores is not None and found.token_scores is not None
        wide = alone.token_scores.shape[1]
        np.testing.assert_allclose(mixed.token_scores[1, :wide], alone.token_scores[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mixed.token_scores[0, : found.token_scores.shape[1]], found.token_scores[0])
    assert_runs_close(runs)


@pytest.mark.parametrize("normalize", [False, True])
def test_alternatives_of_a_trie_are_its_children(bundles: BundleCache, normalize: bool) -> None:
    model = bundles.trace("bart")[0].model
    runner = Runner.load(bundles("dedup"), threads=1)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 5)
    generator = np.random.default_rng(0)
    entries = [[*generator.integers(3, 9, 3).tolist(), 2] for _ in range(60)]
    trie = build_trie(entries)
    after: dict[tuple[int, ...], set[int]] = {}
    for entry in entries:
        for length, token in enumerate(entry):
            after.setdefault(tuple(entry[:length]), set()).add(token)

    def allowed(_: int, row: torch.Tensor) -> list[int]:
        return sorted(after.get(tuple(row[1:].tolist()), {2}))

    runs = []
    for own in ({"num_beams": 1}, {"num_beams": 4, "num_return_sequences": 4}):
        asked = {"max_new_tokens": 6, "return_alternatives": 8, "normalize_logits": normalize, **own}
        found = runner.generate(ids, mask, trie=trie, return_token_scores=True, **asked)
        runs.append(compared(found, model, ids, mask, asked, prefix_allowed_tokens_fn=allowed))
        assert found.alternatives is not None
        for row, places in zip(found.sequences.tolist(), found.alternatives.tokens.tolist(), strict=True):
            for t, place in enumerate(places):
                expected = after.get(tuple(row[1 : 1 + t]), set()) if 2 not in row[1 : 1 + t] else set()
                assert {token for token in place if token >= 0} == expected
    assert_runs_close(runs)


def test_scheduled_samples_with_and_without(bundles: BundleCache) -> None:
    """Samples of one group scheduler, some scored: each gets what it gets alone, and the others get nothing."""
    runner = Runner.load(bundles("dedup"), threads=1)
    generator = np.random.default_rng(0)
    rows = [generator.integers(3, 95, generator.integers(2, 12)).tolist() for _ in range(9)]
    kinds: list[dict[str, Any]] = [{}, {"return_token_scores": True}, {"return_alternatives": 3}]
    own = [{"num_beams": 3, "max_new_tokens": 4 + index % 5, **kinds[index % 3]} for index in range(9)]
    scheduler = runner.scheduler(9, NullEvents())
    for number, (row, settings) in enumerate(zip(rows, own, strict=True)):
        scheduler.add(runner.sample(number, row, settings))
    done = 0
    while scheduler.active:
        for ended in scheduler.turn():
            assert isinstance(ended, FinishedSample)
            alone = runner.generate([rows[ended.number]], **own[ended.number])
            found, done = ended.result, done + 1
            assert (found.token_scores is None) == (ended.number % 3 != 1)
            assert (found.alternatives is None) == (ended.number % 3 != 2)
            if found.token_scores is not None:
                np.testing.assert_allclose(found.token_scores, alone.token_scores, rtol=1e-5, atol=1e-6)
            if found.alternatives is not None and alone.alternatives is not None:
                np.testing.assert_array_equal(found.alternatives.tokens, alone.alternatives.tokens)
    assert done == 9


def test_json_lines(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command, folder = caller(monkeypatch, capsys), bundles("dedup")
    runner = Runner.load(folder, threads=1)
    lines = [
        {"ids": [5, 6, 7], "num_beams": 3, "num_return_sequences": 2, "return_token_scores": True},
        {"ids": [9, 8], "return_alternatives": 2},
        {"ids": [9, 8]},
        {"ids": [9, 8], "return_alternatives": -1},
    ]
    stdin = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    options = ("--ids", "--json-input", "ids", "--max-new-tokens", "6")
    done = command(folder, "--json", *options, stdin=stdin)
    scored, others, plain, bad = done.records
    expected = runner.generate(
        [[5, 6, 7]], num_beams=3, num_return_sequences=2, max_new_tokens=6, return_token_scores=True
    )
    assert expected.token_scores is not None
    for tokens, scores, own in zip(
        scored["sequences"], scored["sequences_token_scores"], expected.token_scores.tolist(), strict=True
    ):
        assert len(scores) == len(tokens) and scores[0] is None
        np.testing.assert_allclose(scores[1:], own[: len(tokens) - 1], rtol=1e-5, atol=1e-6)
    assert scored["token_scores"] == scored["sequences_token_scores"][0] and "alternatives" not in scored
    assert others["alternatives"][0] is None and len(others["alternatives"]) == len(others["tokens"])
    assert [pairs[0][0] for pairs in others["alternatives"][1:]] == others["tokens"][1:]  # greedy takes the best
    assert "sequences_alternatives" not in others and not {"token_scores", "alternatives"} & plain.keys()
    assert "return_alternatives=-1 (from the line)" in bad["error"]
    text = command(folder, *options, stdin=stdin)
    assert "what was asked for beside its text is left out; pass --json" in text.err
    refused = command(folder, "--ids", "--return-token-scores", stdin=b"[5]\n")
    assert refused.code == 1 and "return_token_scores=True is more than a line of text; pass --json" in refused.err


def test_what_cannot_be_given_is_refused_by_name(bundles: BundleCache) -> None:
    old = Runner.load(OLD, threads=1)
    for settings, name in (
        ({"return_token_scores": True}, "return_token_scores=True"),
        ({"return_alternatives": 2, "num_beams": 3}, "return_alternatives=2"),
    ):
        with pytest.raises(
            GenerationError, match=f"{name} needs all scores of a step, which this bundle.*leave it out"
        ):
            old.generate([[5, 6]], **settings)
    sampled = old.generate([[5, 6]], do_sample=True, seed=1, return_token_scores=True, return_alternatives=3)
    assert sampled.token_scores is not None and (sampled.token_scores <= 0).all()
    runner = Runner.load(bundles("dedup"), threads=1)
    with pytest.raises(GenerationError, match="return_token_scores=True is more than texts; call Runner"):
        runner.generate_text(["a"], return_token_scores=True)
