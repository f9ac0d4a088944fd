"""Output from a trie: equal to ``model.generate`` with ``prefix_allowed_tokens_fn`` over the same sequences."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor

from support.bundles.cache import BundleCache
from support.inputs import run_lines
from support.references.causal_runs import prompts
from support.references.expected import generate
from support.references.generate_runs import batch
from support.tolerance import assert_runs_close
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.inputs.lines import LineFormat
from tightbeam.deploy.runtimes.onnxruntime_cpu import CpuDecoding
from tightbeam.deploy.scheduling.events import NullEvents
from tightbeam.deploy.scheduling.scheduler import FinishedSample
from tightbeam.deploy.tries.build import build_trie
from tightbeam.deploy.tries.file import write_trie
from tightbeam.deploy.tries.trie import Trie

Array = Any
END = 2


def entries_of(seed: int, count: int = 40) -> list[list[int]]:
    """Random sequences, some of which begin others, with an end token."""
    generator = np.random.default_rng(seed)
    few = generator.integers(3, 95, 12)
    whole = [generator.choice(few, generator.integers(2, 8)).tolist() for _ in range(count)]
    return [[*entry, END] for entry in [*whole, *(entry[:-1] for entry in whole[: count // 2])]]


class Allowed:
    """The tokens that may follow each beginning of an entry, for ``generate``.

    A row that has left the trie scores -inf already, whatever may follow it.
    """

    def __init__(self, entries: list[list[int]], begin: int) -> None:
        self.begin, self.after = begin, dict[tuple[int, ...], list[int]]()
        for entry in entries:
            for length, token in enumerate(entry):
                self.after.setdefault(tuple(entry[:length]), []).append(token)

    def __call__(self, batch_id: int, row: torch.Tensor) -> list[int]:
        if len(row) < self.begin:
            return list(range(90))
        return self.after.get(tuple(row[self.begin :].tolist()), [END])


class Mask(LogitsProcessor):
    """The same as a processor, which lets nothing follow where nothing may."""

    def __init__(self, allowed: Allowed) -> None:
        self.allowed = allowed

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        mask = torch.full_like(scores, -torch.inf)
        for row, tokens in enumerate(input_ids):
            mask[row, self.allowed.after.get(tuple(tokens[self.allowed.begin :].tolist()), [])] = 0
        return scores + mask


SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_beams": 1},
    {"num_beams": 1, "repetition_penalty": 1.4},
    {"num_beams": 4, "num_return_sequences": 4},
    {"num_beams": 3, "no_repeat_ngram_size": 2, "num_return_sequences": 2, "length_penalty": 0.0},
    {"num_beams": 5, "min_length": 5, "early_stopping": True, "num_return_sequences": 3},
    {"num_beams": 4, "forced_bos_token_id": 8, "forced_eos_token_id": 2, "early_stopping": "never"},
    {"num_beams": 6, "eos_token_id": [2, 17], "bad_words_ids": [[9], [12, 13]], "repetition_penalty": 0.8},
    {"num_beams": 20, "num_return_sequences": 20, "length_penalty": 0.5},
)


def equal(runner: Runner, model: Any, ids: Array, mask: Array, trie: Trie, how: dict[str, Any], **own: Any) -> None:
    """Assert equal sequences, and scores at most twice as far from float64 as torch's.

    Beams that stand in where a trie has too few continuations begin at -1e9, and which of them comes first is a matter
    of the sort: of those the number alone is compared.
    """
    settings = {"max_new_tokens": 9, **own}
    naive = generate(model, ids, mask, {**settings, **how})
    found = runner.generate(ids, mask, trie=trie, **settings)
    if found.scores is None:
        np.testing.assert_array_equal(found.sequences, naive.sequences.numpy(), err_msg=str(own))
        return
    try:
        exact = generate(model.double(), ids, mask, {**settings, **how}).sequences_scores.numpy()
    finally:
        model.float()
    scores = naive.sequences_scores.numpy()
    real = scores > -1e7
    np.testing.assert_array_equal(found.scores > -1e7, real, err_msg=str(own))
    wide = max(found.sequences.shape[1], naive.sequences.shape[1])
    ours, theirs = (
        np.pad(rows, ((0, 0), (0, wide - rows.shape[1])), constant_values=1)[real]
        for rows in (found.sequences, naive.sequences.numpy())
    )
    np.testing.assert_array_equal(ours, theirs, err_msg=str(own))
    assert real.any()
    assert_runs_close([(found.scores[real], exact[real], scores[real])])


@pytest.mark.parametrize("family", ["bart", "t5"])
@pytest.mark.parametrize("index", range(len(SETTINGS)))
def test_equal_to_prefix_allowed_tokens_fn(bundles: BundleCache, family: str, index: int) -> None:
    model = bundles.trace(family)[0].model
    runner = Runner.load(bundles("dedup", family), threads=1)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, index)
    own = SETTINGS[index]
    entries = entries_of(index)
    begin = runner.options(**own).begin
    trie = build_trie(entries)
    equal(runner, model, ids, mask, trie, {"prefix_allowed_tokens_fn": Allowed(entries, begin)}, **own)


@pytest.mark.parametrize("how", [{"top_k": 0, "num_return_sequences": 200}, {"top_k": 50}], ids=str)
def test_draws_among_the_entries(bundles: BundleCache, how: dict[str, Any]) -> None:
    """An entry comes as often as its tokens are likely among those that may follow."""
    model = bundles.trace("bart")[0].model
    runner = Runner.load(bundles("dedup"), threads=1)
    entries = [[7, 8, END], [7, 9, END], [30, END], [7, END]]
    source, start = [5, 6, 7, 40], runner.options().prompt[0]
    shares = dict.fromkeys(map(tuple, entries), 1.0)
    for entry in entries:
        for length, token in enumerate(entry):
            row = torch.tensor([[start, *entry[:length]]])
            with torch.no_grad():
                logits = model(torch.tensor([source]), decoder_input_ids=row).logits[0, -1] / 2
            may_follow = sorted({other[length] for other in entries if other[:length] == entry[:length]})
            shares[tuple(entry)] *= float(logits[may_follow].softmax(0)[may_follow.index(token)])
    settings = {"trie": build_trie(entries), "do_sample": True, "temperature": 2.0, "max_new_tokens": 5, **how}
    found = [
        tuple(row[1 : row.index(END, 1) + 1])
        for seed in range(200 // settings.get("num_return_sequences", 1))
        for row in runner.generate([source], seed=seed, **settings).sequences.tolist()
    ]
    assert set(found) <= set(shares) and len(found) == 200
    assert sum((found.count(entry) - 200 * share) ** 2 / (200 * share) for entry, share in shares.items()) < 21.1


@pytest.mark.parametrize("own", SETTINGS[:4:2], ids=str)
def test_decoder_only(bundles: BundleCache, own: dict[str, Any]) -> None:
    model = bundles.trace("gpt2")[0].model
    runner = Runner.load(bundles("dedup", "gpt2"), threads=1)
    ids, mask = prompts((9, 4, 1), 3)
    entries = entries_of(3)
    allowed = Allowed(entries, ids.shape[1])
    equal(runner, model, ids, mask, build_trie(entries), {"prefix_allowed_tokens_fn": allowed}, **own)


@pytest.mark.parametrize("count", [3, 200], ids=["fewer than beams", "many"])
@pytest.mark.parametrize("variant", ["dedup", "el"])
def test_many_beams_of_one_sample(
    bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, variant: str, count: int
) -> None:
    """Their first step runs one row, unless it has too few candidates."""
    model = bundles.trace("bart")[0].model
    runner = Runner.load(bundles(variant), threads=1)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 8, (9,))
    entries = entries_of(8, count)
    alone, real = [], CpuDecoding._step_first_row

    def counted(decoding: CpuDecoding) -> bool:
        alone.append(real(decoding))
        return alone[-1]

    monkeypatch.setattr(CpuDecoding, "_step_first_row", counted)
    own = {"num_beams": 16, "num_return_sequences": 2}
    how = {"prefix_allowed_tokens_fn": Allowed(entries, runner.options(**own).begin)}
    equal(runner, model, ids, mask, build_trie(entries), how, **own)
    assert alone[0] is False  # a tiny trie: its root has fewer children than a step has candidates
    alone.clear()
    free = {"num_beams": 16, "num_return_sequences": 16, "max_new_tokens": 7, "no_repeat_ngram_size": 2}
    expected = generate(model, ids, mask, free)
    found = runner.generate(ids, mask, **free)
    np.testing.assert_array_equal(found.sequences, expected.sequences.numpy())
    np.testing.assert_allclose(found.scores, expected.sequences_scores.numpy(), rtol=1e-5)
    assert alone == [True]
    given = [[2, 9, 8]]
    begun = generate(model, ids, mask, {**free, "decoder_input_ids": torch.tensor(given)})
    found = runner.generate(ids, mask, decoder_input_ids=given, **free)
    np.testing.assert_array_equal(found.sequences, begun.sequences.numpy())
    assert alone == [True, True]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    "entries",
    [[[7, 8, 9, END]], [[7, END], [7, 8, END], [7, 8, 9, END]], [[END]]],
    ids=["one entry", "entries that begin others", "nothing"],
)
def test_few_entries(bundles: BundleCache, entries: list[list[int]], beams: int) -> None:
    model = bundles.trace("bart")[0].model
    runner = Runner.load(bundles("dedup"), threads=1)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 5)
    own = {"num_beams": beams, "num_return_sequences": min(beams, len(entries))}
    how = {"prefix_allowed_tokens_fn": Allowed(entries, runner.options(**own).begin)}
    equal(runner, model, ids, mask, build_trie(entries), how, **own)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize(
    ("entries", "own"),
    [
        ([[7, 8, 7, 8, 7, END]], {"no_repeat_ngram_size": 2}),
        ([[7, 30, 8, END]], {"bad_words_ids": [[30], [30, 8]], "repetition_penalty": 1.3}),
        ([[7, 9, END]], {"min_new_tokens": 6}),
        ([[7, 30, END], [7, 31, END]], {"bad_words_ids": [[30], [31]], "suppress_tokens": [31]}),
    ],
    ids=str,
)
def test_a_trie_outweighs_what_bans_all_its_tokens(
    bundles: BundleCache, entries: list[list[int]], own: dict[str, Any], beams: int
) -> None:
    """But for suppressed tokens."""
    model = bundles.trace("bart")[0].model
    runner = Runner.load(bundles("dedup"), threads=1)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 5)
    own = {"num_beams": beams, "forced_eos_token_id": None, **own}
    allowed = {"prefix_allowed_tokens_fn": Allowed(entries, runner.options(**own).begin)}
    equal(runner, model, ids, mask, build_trie(entries), allowed, **own)
    scored = runner.generate(ids, mask, trie=build_trie(entries), return_token_scores=True, max_new_tokens=9, **own)
    assert scored.token_scores is not None and np.isfinite(scored.token_scores[0]).all()
    drawn = runner.generate(ids, mask, trie=build_trie(entries), max_new_tokens=9, do_sample=True, **own)
    assert {tuple(row[1 : 1 + len(entries[0])]) for row in drawn.sequences.tolist()} == {tuple(entries[0])}


def test_dead_ends(bundles: BundleCache) -> None:
    """Entries without an end token: nothing follows them, so others win, or rows at the length limit."""
    model = bundles.trace("t5")[0].model
    runner = Runner.load(bundles("dedup", "t5"), threads=1)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 6)
    entries = [*(entry[:-1] for entry in entries_of(6)[:20]), *entries_of(7)[:20]]
    for new in (3, 9):
        own = {"num_beams": 4, "max_new_tokens": new}
        how = {"logits_processor": [Mask(Allowed(entries, runner.options(**own).begin))]}
        equal(runner, model, ids, mask, build_trie(entries), how, **own)


def runs_alone(runner: Runner, rows: list[list[int]], own: list[dict[str, Any]]) -> list[list[int]]:
    return [runner.generate([row], **settings).sequences[0].tolist() for row, settings in zip(rows, own, strict=True)]


def test_a_scheduled_sample_has_its_own_trie(bundles: BundleCache) -> None:
    """Samples with two tries and none, at different lengths: each gets what it gets alone."""
    runner = Runner.load(bundles("dedup"), threads=1)
    generator = np.random.default_rng(0)
    rows = [generator.integers(3, 95, generator.integers(2, 12)).tolist() for _ in range(12)]
    tries = [build_trie(entries_of(1)), build_trie(entries_of(2)), None]
    own = [{"num_beams": 3, "max_new_tokens": 4 + index % 5, "trie": tries[index % 3]} for index in range(12)]
    scheduler = runner.scheduler(9, NullEvents())
    found: dict[int, list[int]] = {}
    for number, (row, settings) in enumerate(zip(rows, own, strict=True)):
        scheduler.add(runner.sample(number, row, settings))
    while scheduler.active:
        for ended in scheduler.turn():
            assert isinstance(ended, FinishedSample)
            found[ended.number] = ended.result.sequences[0].tolist()
    assert [found[number] for number in range(12)] == runs_alone(runner, rows, own)


def test_lines_with_tries_of_their_own(bundles: BundleCache, tmp_path: Path) -> None:
    runner = Runner.load(bundles("dedup"), threads=1)
    files = [tmp_path / "one.trie", tmp_path / "two.trie"]
    for seed, file in enumerate(files):
        write_trie(build_trie(entries_of(seed)), file)
    lines = [{"ids": [5, 6, 7], "trie": str(file)} for file in (*files, tmp_path / "none.trie")]
    written = [json.dumps(line).encode() for line in [*lines, {"ids": [5, 6, 7]}]]
    results = list(run_lines(runner, written, LineFormat(ids=True, field="ids"), num_beams=2, max_new_tokens=6))
    assert "cannot read the trie" in str(results[2].error) and "none.trie" in str(results[2].error)
    own: list[dict[str, Any]] = [{"trie": str(files[0])}, {"trie": str(files[1])}, {}]
    expected = runs_alone(runner, [[5, 6, 7]] * 3, [{"num_beams": 2, "max_new_tokens": 6, **each} for each in own])
    tokens = [results[index].sequences[0] for index in (0, 1, 3)]
    assert [[token for token in row if token != 1] for row in tokens] == [
        [token for token in row if token != 1] for row in expected
    ]
    assert expected[0] != expected[1] != expected[2]


def refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(GenerationError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_settings_that_are_refused(bundles: BundleCache, tmp_path: Path) -> None:
    runner = Runner.load(bundles("dedup"), threads=1)
    refused(lambda: runner.options(trie=7), "trie=7 .* is not a trie; pass a file that build-trie has made")
    refused(lambda: runner.options(trie=str(tmp_path)), "cannot read the trie .*: is a directory")
    small = build_trie([[5]])
    given = {"trie": small, "decoder_input_ids": [2, 6]}
    refused(lambda: runner.options(**given), "leaves <Trie a trie: 1 entries> with 6; pass the beginning of an entry")
    large = build_trie([[5, 4000]])
    refused(lambda: runner.options(trie=large), "holds token 4000, outside the vocabulary of 101; build it with")
    allowed = Allowed([[5]], 1)
    message = "prefix_allowed_tokens_fn=.* it is a function; pass the sequences that it allows as trie"
    refused(lambda: runner.options(prefix_allowed_tokens_fn=allowed), message)
    manifest = runner.manifest
    manifest.generation["trie"] = "a.trie"
    try:
        refused(runner.options, "names a file, which no checkpoint may; remove it there")
    finally:
        del manifest.generation["trie"]
