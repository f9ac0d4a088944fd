"""Tries with a beginning of the output that is given, whose tokens follow the trie from its root: equal to ``generate``
for each sample alone, with a function over the whole sequence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.bundles.cache import BundleCache
from support.commands import caller
from support.references.expected import generate
from support.references.generate_runs import batch
from support.references.warpers import draws_of_ours
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.sampling import Sampling
from tightbeam.deploy.tries.build import build_trie
from tightbeam.deploy.tries.file import write_trie

END, FORCED = 2, 8
MANY = [[9, token, after, END] for token in range(20, 32) for after in (40, 41, 42 + token % 3)]
ENTRIES = [*MANY, [9, 21, END], [9, 20, 40, 50, 51, 52, END], [9, 20, 40, 50, 53, END], [60, END], [60, 61, 62, END]]
BEGINNINGS = ([9], [9, 20, 40], [2, 60])  # the last with the start token
SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_beams": 1, "repetition_penalty": 1.4},
    {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 0.0},
    {"num_beams": 4, "forced_bos_token_id": FORCED, "early_stopping": True},
    {"do_sample": True, "temperature": 2.0, "top_k": 0, "num_return_sequences": 3},
    {"do_sample": True, "temperature": 0.7, "top_k": 5},
)


class Tree:
    """GENRE's ``trie.get(sequence.tolist())``, for entries that begin with some tokens.

    A longer row than the beginning of ``given`` tokens that has left the entries scores -inf already, so that it does
    not matter what may follow it.
    """

    def __init__(self, *before: int, given: int) -> None:
        self.given = given
        self.after: dict[tuple[int, ...], list[int]] = {}
        for entry in ENTRIES:
            row = [*before, *entry]
            for length, token in enumerate(row):
                self.after.setdefault(tuple(row[:length]), []).append(token)

    def __call__(self, batch_id: int, row: torch.Tensor) -> list[int]:
        return self.after.get(tuple(row.tolist()), [END] if len(row) > self.given else [])


@pytest.fixture(scope="module")
def runner(bundles: BundleCache) -> Runner:
    return Runner.load(bundles("dedup"), threads=1)


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
@pytest.mark.parametrize("before", [(), (FORCED,)], ids=["", "behind a forced token"])
def test_equal_to_a_function_over_the_whole_sequence(
    runner: Runner,
    bundles: BundleCache,
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[int, ...],
    settings: dict[str, Any],
) -> None:
    """A forced first token that a beginning has is no token of the entries, as in an output without a beginning."""
    if before and "forced_bos_token_id" not in settings:
        settings = {**settings, "forced_bos_token_id": FORCED}
    given = [[*own[: own[0] == 2], *before, *own[own[0] == 2 :]] for own in BEGINNINGS]
    model = bundles.trace("bart")[0].model
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 1)
    rows = [row[own > 0].tolist() for row, own in zip(ids, mask, strict=True)]
    returned, asked = settings.get("num_return_sequences", 1), {"max_new_tokens": 6, **settings}
    own = {"seed": 5} if "do_sample" in settings else {}
    found = runner.generate(rows, decoder_input_ids=given, trie=build_trie(ENTRIES), **asked, **own)
    for sample, (row, beginning) in enumerate(zip(rows, given, strict=True)):
        allowed = Tree(2, *before, given=len(beginning) + (beginning[0] != 2))
        how = {"decoder_input_ids": torch.tensor([beginning]), "prefix_allowed_tokens_fn": allowed}
        source, ones = np.array([row]), np.ones((1, len(row)), np.int64)
        keyed = Sampling(seed=5).for_input(row)
        with draws_of_ours(monkeypatch, [keyed.uniforms(sequence, 64) for sequence in range(returned)]):
            naive = generate(model, source, ones, {**asked, **how})
        ours, expected = found.of(sample, returned), naive.sequences.numpy()
        np.testing.assert_array_equal(ours.sequences[:, : expected.shape[1]], expected)
        if ours.scores is not None:
            np.testing.assert_allclose(ours.scores, naive.sequences_scores.numpy(), rtol=1e-5)


def test_lines_with_beginnings_of_their_own(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each as alone; one that leaves the trie has an error of its own."""
    write_trie(build_trie(ENTRIES), tmp_path / "a.trie")
    given: list[list[int] | None] = [[9], None, [9, 20, 40], [9, 60], [2, 60], [60, 2], [2, 60, 61], [4]]
    lines = [{"ids": [5, 6, 7], "decoder_input_ids": own} for own in given]
    asked: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 6}
    options = [f"--trie={tmp_path / 'a.trie'}", "--num-beams=3", "--max-new-tokens=6", "--max-rows=6"]
    stdin = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    done = caller(monkeypatch, capsys)(
        runner.bundle.path, "--json", "--ids", "--json-input", "ids", *options, stdin=stdin
    )
    records = [json.loads(line) for line in done.out.splitlines()]
    for own, record in zip(given, records, strict=True):
        settings = {**asked, "trie": tmp_path / "a.trie", **({} if own is None else {"decoder_input_ids": [own]})}
        if own in ([9, 60], [60, 2], [4]):
            with pytest.raises(GenerationError) as caught:
                runner.generate([[5, 6, 7]], **settings)
            told = str(caught.value).split("(from the call)")[1]
            assert record["error"].endswith(told) and "\n" not in told
        else:
            alone = runner.generate([[5, 6, 7]], **settings).sequences[0].tolist()
            assert record["tokens"] == alone[: len(record["tokens"])] and 2 in record["tokens"][1:]


def test_beginnings_that_are_refused(runner: Runner) -> None:
    trie = build_trie(ENTRIES)
    for given, problem in (
        ([9, 60], r"leaves <Trie a trie: 41 entries> with 60; pass the beginning of an entry"),
        ([2, 60, 2], r"is an entry of <Trie a trie: 41 entries>, which nothing follows; pass fewer tokens"),
        ([60, 2, 2], r"leaves <Trie a trie: 41 entries> with 2; pass"),
        ([FORCED, 9], r"leaves <Trie a trie: 41 entries> with 8; pass"),
    ):
        with pytest.raises(GenerationError, match=rf"decoder_input_ids=.* \(from the call\) {problem}"):
            runner.generate([[5, 6]], decoder_input_ids=[given], trie=trie)
    assert runner.options(decoder_input_ids=[2], trie=trie, forced_bos_token_id=FORCED).root == 2
