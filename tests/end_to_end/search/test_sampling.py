"""Sampling from bundles against `model.generate`, whose draws are made ours; and the same tokens in any company."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.commands import caller
from support.references.expected import generate
from support.references.generate_runs import batch
from support.references.warpers import draws_of_ours
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.sampling import Sampling

OLD = Path(__file__).resolve().parents[2] / "data" / "bundle-format-2"
LENGTHS = (11, 4, 1)
NEW = 10
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.6, "top_k": 5, "top_p": 0.9},
    {"top_k": 0},
    {"top_k": 0, "top_p": 0.7, "min_p": 0.02},
    {"top_k": 0, "typical_p": 0.8, "temperature": 0.8},
    {"top_k": 20, "num_return_sequences": 3, "temperature": 1.3},
    {"top_k": 0, "num_return_sequences": 2, "repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "min_new_tokens": 6},
    {"repetition_penalty": 0.7, "no_repeat_ngram_size": 1, "bad_words_ids": [[9], [12, 13]], "min_new_tokens": 4},
    {"suppress_tokens": [5, 6, 7], "begin_suppress_tokens": [8, 9], "forced_bos_token_id": 8, "top_p": 0.95},
    {"forced_eos_token_id": [3, 4, 5], "num_return_sequences": 2, "eos_token_id": [2, 7, 11]},
)


@pytest.fixture(scope="module")
def runner(bundles: BundleCache) -> Runner:
    return Runner.load(bundles("dedup"), threads=1)


def uniforms(ids: Any, mask: Any, seed: int, returned: int) -> list[np.ndarray]:
    keyed = [Sampling(seed=seed).for_input(row[own > 0]) for row, own in zip(ids, mask, strict=True)]
    return [each.uniforms(sequence, 64) for each in keyed for sequence in range(returned)]


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
def test_tokens_are_those_of_generate_with_our_draws(
    runner: Runner, bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    model = bundles.trace("bart")[0].model
    for seed in range(3):
        ids, mask = batch(runner.manifest.sizes.source_vocabulary, seed, LENGTHS)
        asked = {"do_sample": True, "max_new_tokens": NEW, **settings}
        with draws_of_ours(monkeypatch, uniforms(ids, mask, seed, settings.get("num_return_sequences", 1))):
            expected = generate(model, ids, mask, asked).sequences.numpy()
        found = runner.generate(ids, mask, seed=seed, **asked)
        np.testing.assert_array_equal(found.sequences, expected)
        assert found.scores is None


@pytest.mark.parametrize("settings", [{}, {"top_k": 0, "num_return_sequences": 2}], ids=repr)
def test_seed_gives_the_same_tokens_in_any_company(
    runner: Runner, bundles: BundleCache, settings: dict[str, Any]
) -> None:
    """Alone, in a batch, joining others, and in another runner; other inputs and seeds give others."""
    asked = {"do_sample": True, "max_new_tokens": NEW, "temperature": 1.5, "seed": 11, **settings}
    returned = settings.get("num_return_sequences", 1)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 5, (7, 3, 9, 1, 5))
    rows = [row[own > 0].tolist() for row, own in zip(ids, mask, strict=True)]
    together = runner.generate(ids, mask, **asked)
    samples = [runner.sample(number, row, asked) for number, row in enumerate(rows)]
    scheduled = runner.scheduler(2 * samples[0].options.num_beams).run(samples)
    other = Runner.load(runner.bundle.path, threads=1)
    for index, row in enumerate(rows):
        alone = other.generate([row], **asked).sequences
        width = alone.shape[1]
        np.testing.assert_array_equal(together.of(index, returned).sequences[:, :width], alone)
        np.testing.assert_array_equal(scheduled[index].sequences, alone)
        if returned == 2:
            assert alone[0].tolist() != alone[1].tolist()
    again = runner.generate(ids, mask, **{**asked, "seed": 12})
    assert again.sequences.tolist() != together.sequences.tolist()
    free = [runner.generate(ids, mask, **{**asked, "seed": None}).sequences.tolist() for _ in range(2)]
    assert free[0] != free[1]


def test_line_of_a_file_gives_the_same_alone(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = caller(monkeypatch, capsys)

    def run_model(lines: list[Any], *options: str) -> list[list[int]]:
        stdin = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        done = command(runner.bundle.path, "--json", "--ids", *options, stdin=stdin).succeeded()
        return [record["tokens"] for record in done.records]

    lines = [[5, 6, 7], [9, 8], [5, 6, 7], [12, 13, 14, 15]]
    settings = ["--do-sample", "--seed", "3", "--temperature", "1.4", "--top-k", "30"]
    found = run_model(lines, *settings)
    assert found[0] == found[2] != found[1]
    assert [run_model([line], *settings)[0] for line in lines] == found
    own = [{"ids": line, "do_sample": True, "seed": 3, "temperature": 1.4, "top_k": 30} for line in lines]
    assert run_model(own, "--json-input", "ids") == found


def test_bundles_of_format_2_sample_among_candidates_alone() -> None:
    runner = Runner.load(OLD, threads=1)
    ids = [[5, 6, 7, 8]]
    first = runner.generate(ids, do_sample=True, seed=1, temperature=2.0).sequences
    assert first.tolist() == runner.generate(ids, do_sample=True, seed=1, temperature=2.0).sequences.tolist()
    for settings in ({"top_k": 0}, {"num_return_sequences": 2}, {"top_k": 299}):
        name, value = next(iter(settings.items()))
        with pytest.raises(GenerationError, match=f"{name}={value} needs all scores of a step, which this bundle"):
            runner.generate(ids, do_sample=True, **settings)
