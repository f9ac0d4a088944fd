"""Compaction: finished samples are removed from a batch. No result may change, and their rows are no longer run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.bundles.cache import BundleCache
from support.options import resolve_options
from support.references.ending_models import ENDING, LENGTHS, often_ended
from support.references.expected import expect_equal
from support.references.generate_runs import batch
from support.searches.driver import search
from support.searches.whole_batch_search import search_together
from tightbeam.deploy import BundleError, Runner
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.runtimes import onnxruntime_cpu
from tightbeam.deploy.runtimes.base import small_inputs
from tightbeam.deploy.runtimes.device.steps_alone import StepsAlone
from tightbeam.deploy.runtimes.onnxruntime_cpu import CpuDecoding
from tightbeam.deploy.runtimes.step_inputs import BeamStepper
from tightbeam.deploy.search import Candidates, StepInputs
from tightbeam.deploy.search.compaction import Compaction
from tightbeam.graph_passes import PRESETS

VOCABULARY, EOS = 17, 2
DEFAULTS = {"eos_token_id": EOS, "pad_token_id": 1, "decoder_start_token_id": 3}


@given(removed=st.lists(st.booleans(), min_size=1, max_size=12), rows=st.integers(1, 3))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_compaction_keeps_the_remaining_samples(removed: list[bool], rows: int) -> None:
    compaction = Compaction.of(np.array(removed))
    values = np.arange(len(removed) * rows * 2).reshape(-1, 2)
    before = values.copy().reshape(len(removed), rows, 2)
    left = compaction.apply(values, rows)
    assert np.shares_memory(left, values) or not compaction.remaining
    samples = compaction.apply(np.arange(len(removed)))
    assert sorted(samples.tolist()) == np.flatnonzero(~np.array(removed)).tolist()
    np.testing.assert_array_equal(left.reshape(compaction.remaining, rows, 2), before[samples])
    assert len(compaction.moves) <= sum(removed)
    assert all(samples[place] == place for place in range(compaction.remaining) if not removed[place])


@pytest.mark.parametrize("rows", [1, 2])
def test_compaction_moves_no_more_than_a_part_of_each_row(rows: int) -> None:
    compaction = Compaction.of(np.array([True, False, True, False, False]))
    values = np.arange(5 * rows * 24).reshape(5 * rows, 2, 4, 3)
    before = values.reshape(5, rows, 2, 4, 3).copy()
    left = compaction.apply(values, rows, (slice(None), slice(3))).reshape(3, rows, 2, 4, 3)
    moved = before[compaction.apply(np.arange(5))]
    np.testing.assert_array_equal(left[..., :3, :], moved[..., :3, :])
    np.testing.assert_array_equal(left[..., 3:, :], before[:3, ..., 3:, :])


class MadeUpStep:
    """Log-probabilities that depend on a sample and its row's tokens alone. Some are equal, some are -inf; each sample
    ends at its own pace."""

    def __init__(self, options: GenerationOptions, size: int, seed: int) -> None:
        self.options, self.seed = options, seed
        self.samples = np.arange(size)
        self.history = np.zeros((size, options.num_beams, options.max_length - 1), np.int64)
        self.rows_run = 0

    def __call__(self, inputs: StepInputs) -> Candidates:
        B, M, T = inputs.history.shape
        assert len(self.samples) == len(self.history) == B
        np.testing.assert_array_equal(self.history[:, :, :T], inputs.history)
        scores = np.stack([[self.scores(sample, row) for row in rows] for sample, rows in self.by_sample(inputs)])
        for b, m, token in zip(*np.nonzero(inputs.banned >= 0), strict=True):
            scores[b, m, inputs.banned[b, m, token]] = -np.inf
        flat = (inputs.beam_scores[:, :, None] + scores).reshape(B, -1)
        order = np.argsort(-flat, axis=1, kind="stable")[:, : self.options.candidates]
        self.rows_run += B * M
        return Candidates(np.take_along_axis(flat, order, 1), order // VOCABULARY, order % VOCABULARY)

    def by_sample(self, inputs: StepInputs) -> Any:
        return zip(self.samples.tolist(), inputs.history.tolist(), strict=True)

    def scores(self, sample: int, row: list[int]) -> Any:
        generator = np.random.default_rng([self.seed, sample, *row])
        pace = np.random.default_rng([self.seed, sample]).uniform(-6, 8)
        logits = generator.integers(-4, 4, VOCABULARY).astype(np.float32)  # small integers, so that many are equal
        logits[EOS] += np.float32(pace)
        logits[generator.random(VOCABULARY) < 0.1] = -np.inf
        logits[4] = 0
        return (logits - np.log(np.exp(logits).sum())).astype(np.float32)

    def compact(self, compaction: Compaction) -> None:
        assert 0 < compaction.remaining < len(self.samples)
        self.samples, self.history = compaction.apply(self.samples), compaction.apply(self.history)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    size=st.integers(1, 6),
    seed=st.integers(0, 2**31),
    num_beams=st.integers(1, 4),
    asked=st.fixed_dictionaries(
        {
            "max_length": st.integers(2, 14),
            "early_stopping": st.sampled_from([True, False, "never"]),
            "length_penalty": st.sampled_from([-2.0, -0.7, 0.0, 0.5, 1.0, 2.0, 6.0]),
        },
        optional={
            "num_return_sequences": st.integers(1, 4),
            "eos_token_id": st.sampled_from([[EOS, 7], [7, EOS, 9], [EOS, EOS], EOS]),
            "min_length": st.integers(0, 10),
            "forced_bos_token_id": st.sampled_from([0, EOS, 8]),
            "forced_eos_token_id": st.sampled_from([EOS, 9, [EOS, 5]]),
            "pad_token_id": st.sampled_from([0, EOS, 12]),
            "suppress_tokens": st.lists(st.integers(3, 16), max_size=14),
            "bad_words_ids": st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=3), min_size=1, max_size=4),
        },
    ),
)
def test_compaction_changes_no_result(size: int, seed: int, num_beams: int, asked: dict[str, Any]) -> None:
    asked["num_return_sequences"] = min(num_beams, asked.get("num_return_sequences", 1))
    forced = {asked.get("forced_bos_token_id"), *np.atleast_1d(asked.get("forced_eos_token_id", -1)).tolist()}
    asked["suppress_tokens"] = [token for token in asked.get("suppress_tokens", []) if token not in forced]
    options = resolve_options(DEFAULTS, {**asked, "num_beams": num_beams}, vocab_size=VOCABULARY, max_positions=20)
    removed, staying = MadeUpStep(options, size, seed), MadeUpStep(options, size, seed)
    found, expected = search(removed, options, size), search_together(staying, options, size)
    np.testing.assert_array_equal(found.sequences, expected.sequences)
    if expected.scores is None:
        assert found.scores is None
    else:
        assert found.scores is not None
        np.testing.assert_array_equal(found.scores, expected.scores)
    assert removed.rows_run <= staying.rows_run


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_synthetic_samples_end_at_different_steps(num_beams: int, early_stopping: bool | str) -> None:
    """Compaction removes rows in these runs; without that the comparison above would prove nothing."""
    asked = {"num_beams": num_beams, "early_stopping": early_stopping, "max_length": 14}
    options = resolve_options(DEFAULTS, asked, vocab_size=VOCABULARY, max_positions=20)
    removed_rows = staying_rows = 0
    for seed in range(20):
        removed, staying = MadeUpStep(options, 6, seed), MadeUpStep(options, 6, seed)
        search(removed, options, 6)
        search_together(staying, options, 6)
        removed_rows, staying_rows = removed_rows + removed.rows_run, staying_rows + staying.rows_run
    assert removed_rows < 0.95 * staying_rows


# The runtime


@pytest.fixture
def rows_run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of rows that each step of any decoding runs."""
    rows: list[int] = []
    step = CpuDecoding.step

    def counted(self: CpuDecoding) -> Any:
        scores, beams, tokens = step(self)
        M = self.inputs["ancestry"].shape[1]
        assert len(scores) * M == len(self.inputs["tokens"]) == len(self.inputs["history"])
        rows.append(len(self.inputs["tokens"]))
        return scores, beams, tokens

    monkeypatch.setattr(CpuDecoding, "step", counted)
    return rows


VARIANTS = [
    each if each in ("baseline", "dedup", "el") else pytest.param(each, marks=pytest.mark.slow) for each in PRESETS
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_finished_samples_are_not_run(bundles: BundleCache, rows_run: list[int], variant: str) -> None:
    """The tokens are those of `generate` for the whole batch, with fewer and fewer rows."""
    model = bundles.trace("bart")[0].model
    runner = Runner.load(bundles(variant, "bart"), threads=1)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 3, LENGTHS)
    ends = often_ended(model, ids, mask)

    def runs() -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        for asked in ENDING:
            rows_run.clear()
            yield ids, mask, {"max_new_tokens": 24, "eos_token_id": ends, **asked}
            assert rows_run[0] == len(ids) * asked["num_beams"]
            assert rows_run == sorted(rows_run, reverse=True)
            assert len(set(rows_run)) > 2, f"expected samples to leave at different times: {asked} {rows_run}"

    expect_equal(runner, model, runs())


@pytest.mark.parametrize("variant", PRESETS)
def test_the_encoder_runs_a_few_samples_at_a_time(
    bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    model = bundles.trace("bart")[0].model
    runner = Runner.load(bundles(variant, "bart"), threads=1)
    runs = []
    run = onnxruntime_cpu.run_bound
    monkeypatch.setattr(onnxruntime_cpu, "run_bound", lambda *args: (runs.append(args[2]), run(*args)))
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 5, LENGTHS[:5])
    asked = [(ids, mask, {"num_beams": beams, "max_new_tokens": 6}) for beams in (1, 3, 4)]
    for together, times in ((1, 5), (24, 3), (1024, 1)):  # 24: two samples of 11 positions, so 2 + 2 + 1
        monkeypatch.setattr(onnxruntime_cpu, "ENCODED_TOGETHER", together)
        runs.clear()
        expect_equal(runner, model, asked)
        assert runs.count("encoder") == times * len(asked)


def test_a_step_allocates_and_binds_nothing(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same buffers are bound once from the first step to the last, and again after a compaction."""
    seen: list[tuple[int, int, tuple[int, ...]]] = []
    step = CpuDecoding.step

    def watched(self: CpuDecoding) -> Any:
        result = step(self)
        arrays = (*self.inputs.values(), *self._source.values(), *self._in_place.values(), *result)
        seen.append((len(result[0]), id(self._bindings[len(result[0])]), tuple(array.ctypes.data for array in arrays)))
        return result

    monkeypatch.setattr(CpuDecoding, "step", watched)
    runner = Runner.load(bundles("dedup", "bart"), threads=1)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 3, LENGTHS)
    asked = {"num_beams": 3, "no_repeat_ngram_size": 2, "suppress_tokens": [5, 6]}
    runner.generate(ids, mask, max_new_tokens=12, min_new_tokens=12, **asked)
    assert len(seen) == 12
    assert len(set(seen)) == 1
    seen.clear()
    ends = often_ended(bundles.trace("bart")[0].model, ids, mask)
    runner.generate(ids, mask, max_new_tokens=24, eos_token_id=ends, **asked)
    assert len({buffers for *_, buffers in seen}) == 1, "the samples left use the first places of the same memory"
    assert len({samples for samples, *_ in seen}) > 2


def test_a_growing_cache_of_more_samples_is_freed(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A binding keeps the caches of its last step, so those of earlier numbers of samples are gone."""
    seen: list[tuple[int, int]] = []
    step = CpuDecoding.step

    def watched(self: CpuDecoding) -> Any:
        result = step(self)
        seen.append((len(result[0]), len(self._bindings)))
        return result

    monkeypatch.setattr(CpuDecoding, "step", watched)
    runner = Runner.load(bundles("baseline", "bart"), threads=1)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 3, LENGTHS)
    ends = often_ended(bundles.trace("bart")[0].model, ids, mask)
    runner.generate(ids, mask, num_beams=3, max_new_tokens=24, eos_token_id=ends)
    assert len({samples for samples, _ in seen}) > 2
    assert {bindings for _, bindings in seen} == {1}


class MadeUpDecoding(StepsAlone):
    """A decoding that returns given scores."""

    def __init__(self, size: int, beams: int, positions: int, scores: Any, tokens: Any) -> None:
        sizes = {
            "B": size,
            "M": beams,
            "R": size * beams,
            "T_max": positions,
            "T_history": positions,
            "P": 0,
            "Y": 0,
            "Y + 3": 3,
            "groups": 1,
        }
        self.inputs = small_inputs(sizes)
        self.scores, self.tokens = scores, tokens
        self.cache_bytes = (0, 0)

    def step(self) -> Any:
        return self.scores, np.zeros_like(self.tokens), self.tokens

    def compact(self, compaction: Compaction) -> None:
        M = len(self.inputs["tokens"]) // len(self.inputs["lengths"])
        for name in ("tokens", "beam_index", "history", "banned", "positions", "trie_nodes"):
            self.inputs[name] = compaction.apply(self.inputs[name], M)
        for name in ("lengths", "first_positions", "history_lengths", "ancestry", "beam_scores"):
            self.inputs[name] = compaction.apply(self.inputs[name])
        self.scores, self.tokens = compaction.apply(self.scores), compaction.apply(self.tokens)

    def reserve_banned(self, count: int) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("invalid", ["nan", "token -1"])
def test_nan_scores_are_an_error_that_names_the_sample(invalid: str) -> None:
    options = resolve_options(DEFAULTS, {"num_beams": 2, "max_length": 6}, vocab_size=VOCABULARY, max_positions=20)
    scores = np.zeros((5, options.candidates), np.float32)
    tokens = np.full((5, options.candidates), 4, np.int64)
    decoding = MadeUpDecoding(5, 2, 5, scores, tokens)
    stepper = BeamStepper(decoding, options)
    for sample in range(5):
        stepper.join(sample, 1, 0)
    zeros, banned = np.zeros((5, 2), np.int64), np.zeros((5, 2, 0), np.int64)
    inputs = StepInputs(
        zeros, stepper.history[:, :, :1], np.full(5, 1), zeros, zeros.astype(np.float32), np.zeros((5, 2, 0), np.int64)
    )
    scores[:, -1] = -np.inf  # no allowed token left is no error
    stepper(inputs)
    if invalid == "nan":
        scores[4, -1] = np.nan
    else:
        tokens[4, 0] = -1
    with pytest.raises(BundleError, match="scores of sample 4 are NaN or infinite after 1 tokens"):
        stepper(inputs)
    stepper.compact(Compaction.of(np.array([False, True, False, True, False])))  # sample 4 is now at index 1
    scores_of_three = zeros[:3].astype(np.float32)
    three = StepInputs(zeros[:3], stepper.history[:, :, :2], np.full(3, 2), zeros[:3], scores_of_three, banned[:3])
    with pytest.raises(BundleError, match="scores of sample 4 are NaN or infinite after 2 tokens") as caught:
        stepper(three)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_nan_weights(bundles: BundleCache, tmp_path: Path, num_beams: int) -> None:
    folder = Path(shutil.copytree(bundles("dedup", "bart"), tmp_path / "bundle"))
    weights = bytearray((folder / "weights.safetensors").read_bytes())
    start = 8 + int.from_bytes(weights[:8], "little")
    half = start + (len(weights) - start) // 8 * 4
    weights[half:] = np.full((len(weights) - half) // 4, np.nan, np.float32).tobytes()
    (folder / "weights.safetensors").write_bytes(weights)
    runner = Runner.load(folder, threads=1, verify=False)
    with pytest.raises(BundleError, match=r"model's scores .*are NaN or infinite .*weights hold NaN"):
        runner.generate(np.full((2, 4), 7), num_beams=num_beams, max_new_tokens=4)


def test_too_many_rows_for_the_memory(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner.load(bundles("dedup", "bart"), threads=1)
    ids = np.full((2, 4), 7)
    expected = runner.generate(ids, num_beams=2, max_new_tokens=3).sequences

    def zeros(*args: Any) -> Any:
        raise MemoryError("Unable to allocate 1 EiB")

    monkeypatch.setattr(onnxruntime_cpu.np, "zeros", zeros)
    with pytest.raises(BundleError, match="no memory for 2 rows; run fewer rows together"):
        runner.generate(ids, num_beams=2, max_new_tokens=4)
    monkeypatch.undo()
    np.testing.assert_array_equal(runner.generate(ids, num_beams=2, max_new_tokens=3).sequences, expected)
