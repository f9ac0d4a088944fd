"""Tokens that are known before they are generated: the same results as by steps, with fewer steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from support.audio import chirp, window_recordings
from support.bundles.cache import BundleCache
from support.checkpoints.timestamps import with_timestamps
from support.recordings_command import load_words
from tightbeam.deploy import BundleError, GenerationError, Runner
from tightbeam.deploy.arrays import Ints
from tightbeam.deploy.inputs.live import LiveUpdate
from tightbeam.deploy.runtimes.known_tokens import _Draft
from tightbeam.deploy.runtimes.onnxruntime_cpu import CpuDecoding, OnnxRuntimeCpu
from tightbeam.plugins.library import cpu_library

BEGUN = [[2, 14, 55, 31, 7, 60, 22, 9, 41], [2, 8, 8]]
"""Beginnings of outputs, of which one is long enough to be read at once."""
SEARCHES: tuple[dict[str, Any], ...] = (
    {},
    {"num_beams": 3},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    {"do_sample": True, "seed": 4},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.7},
    {"return_token_scores": True, "return_alternatives": 2},
)

pytestmark = pytest.mark.skipif(cpu_library() is None, reason="the CPU library was not built")


class Counted:
    """The runs of the decoder: steps, and the tokens of each run over known tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps, self.runs, self.allowed = 0, list[int](), True
        step, prefill = CpuDecoding.step, CpuDecoding.prefill

        def counted_step(decoding: CpuDecoding) -> Any:
            self.steps += 1
            return step(decoding)

        def counted_prefill(decoding: CpuDecoding, sample: int, tokens: Ints, first: int, *, read: bool = False) -> Any:
            found = prefill(decoding, sample, tokens, first, read=read) if self.allowed else None
            self.runs += [] if found is None else [len(tokens)]
            return found

        monkeypatch.setattr(CpuDecoding, "step", counted_step)
        monkeypatch.setattr(CpuDecoding, "prefill", counted_prefill)

    @contextmanager
    def by_steps(self) -> Iterator[None]:
        """Runs over known tokens are none."""
        self.allowed = False
        yield
        self.allowed = True

    def taken(self) -> tuple[int, list[int]]:
        """The steps and runs since the last call."""
        found = self.steps, self.runs
        self.steps, self.runs = 0, []
        return found


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def expect_equal(found: Any, expected: Any) -> None:
    """All fields of two results; scores up to rounding, since a row has other rows beside it."""
    for field in dataclasses.fields(found):
        own, other = getattr(found, field.name), getattr(expected, field.name)
        if dataclasses.is_dataclass(own):
            expect_equal(own, other)
        elif isinstance(own, np.ndarray) and own.dtype.kind == "f":
            np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-4)
        elif isinstance(own, np.ndarray):
            np.testing.assert_array_equal(own, other)
        else:
            assert own == other, field.name


@pytest.mark.parametrize(
    ("family", "variant", "more"),
    [
        ("bart", "dedup", {}),
        ("bart", "el", {}),
        ("bart", "xcache", {}),
        ("bart", "kcache", {}),
        ("marian", "el", {}),
        ("marian", "dedup", {"precision": "int8"}),
        ("bart", "dedup", {"cache_precision": "int8"}),
    ],
)
@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_a_beginning_is_read_at_once(
    bundles: BundleCache, counted: Counted, family: str, variant: str, more: dict[str, Any], search: dict[str, Any]
) -> None:
    runner = Runner.load(bundles(variant, family, **more), threads=1)
    rows = [[5, 9, 33, 12, 2], [40, 6, 17, 2]]
    how = {"max_new_tokens": 8, "decoder_input_ids": BEGUN, **search}
    found = runner.generate(rows, **how)
    steps, runs = counted.taken()
    with counted.by_steps():
        expect_equal(found, runner.generate(rows, **how))
    assert runs == [len(BEGUN[0]) - (BEGUN[0][0] == runner.options().prompt[0])]
    assert steps < counted.taken()[0]


def test_beside_other_samples_a_short_beginning_takes_steps(bundles: BundleCache, counted: Counted) -> None:
    runner, rows = Runner.load(bundles("dedup", "bart"), threads=1), [[5, 9, 2], [40, 6, 17, 2], [8, 2]]
    how: dict[str, Any] = {"max_new_tokens": 4, "decoder_input_ids": [BEGUN[0], BEGUN[0], [*BEGUN[0], *BEGUN[0]]]}
    found = runner.generate(rows, **how)
    _, runs = counted.taken()
    with counted.by_steps():
        expect_equal(found, runner.generate(rows, **how))
    assert runs == [8, 17]


@pytest.mark.parametrize(
    ("family", "variant", "more"),
    [
        ("bart", "baseline", {}),
        ("bart", "dedup", {"generated_cache_precision": "int8"}),
        pytest.param("t5", "dedup", {}, marks=pytest.mark.slow),
    ],
)
def test_other_caches_are_filled_by_steps(
    bundles: BundleCache, counted: Counted, family: str, variant: str, more: dict[str, Any]
) -> None:
    runner = Runner.load(bundles(variant, family, **more), threads=1)
    assert runner.manifest.prefill is None
    own = next(entry for entry in runner.manifest.passes if entry.name == "prefill")
    assert own.reason
    runner.generate([[5, 9, 2]], max_new_tokens=2, decoder_input_ids=BEGUN[:1], draft_ids=[4] * 9)
    assert counted.taken()[1] == []


@pytest.mark.parametrize(("family", "variant"), [("bart", "dedup"), ("bart", "slim"), ("marian", "xcache")])
@pytest.mark.parametrize("search", [own for own in SEARCHES if "num_beams" not in own], ids=str)
def test_a_draft_is_verified(
    bundles: BundleCache, counted: Counted, family: str, variant: str, search: dict[str, Any]
) -> None:
    """All of it if it is right, as far as the output may be long; otherwise what is right of it."""
    runner, rows = Runner.load(bundles(variant, family), threads=1), [[5, 9, 33, 12, 2]]
    how = {"max_new_tokens": 20, "min_new_tokens": 20, **search}
    expected = runner.generate(rows, **how)
    steps, runs = counted.taken()
    assert (steps, runs) == (20, [])
    tokens = expected.sequences[0].tolist()[1:]
    wrong = [*tokens[:7], 5 if tokens[7] != 5 else 6, *tokens[8:]]
    for draft in (tokens, [*tokens, *tokens]):
        expect_equal(runner.generate(rows, draft_ids=draft, **how), expected)
        assert counted.taken() == (0, [20])
    for draft, most in ((wrong, 12), (tokens[:9], 10), (wrong[7:], 19), ([*wrong[:5], *tokens[7:]], 14), ([6] * 9, 20)):
        expect_equal(runner.generate(rows, draft_ids=draft, **how), expected)
        steps, runs = counted.taken()
        assert steps + len(runs) <= most + 1 and runs, draft


def test_a_long_draft_is_read_in_parts(bundles: BundleCache, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightbeam.deploy.runtimes.known_tokens.TOGETHER", 4)
    runner, rows = Runner.load(bundles("dedup", "bart"), threads=1), [[5, 9, 33, 12, 2]]
    how: dict[str, Any] = {"max_new_tokens": 14, "min_new_tokens": 14}
    expected = runner.generate(rows, **how)
    tokens = expected.sequences[0].tolist()[1:]
    counted.taken()
    expect_equal(runner.generate(rows, draft_ids=tokens, **how), expected)
    assert counted.taken() == (0, [4, 4, 4, 2])


def test_a_draft_goes_on_behind_what_it_has_not_foreseen() -> None:
    """A token that is replaced, some that are left out, and more that are new than the draft can bridge."""
    draft = _Draft(np.arange(20), 20, 0, 64)
    row = [0, 1, 2, 3]
    assert draft.follow(np.array(row)) and draft.foreseen
    assert draft.follow(np.array([*row, 50])) and not draft.foreseen
    assert draft.next_part().tolist() == [50, 5, 6, 7, 8, 9, 10, 11]
    assert draft.follow(np.array([*row, 50, 5])) and draft.foreseen
    assert draft.follow(np.array([*row, 50, 5, 9]))
    assert draft.guess.tolist() == [*row, 50, 5, 9, *range(10, 20)]
    assert not draft.follow(np.array([*row, 50, 5, 9, 60]))
    assert not draft.follow(np.array([*row, 50, 5, 9, 60, 61]))
    assert draft.follow(np.array([*row, 50, 5, 9, 60, 61, 14]))
    assert draft.guess.tolist() == [*row, 50, 5, 9, 60, 61, 14, *range(15, 20)]


def test_a_draft_does_not_delay_the_samples_beside_it(bundles: BundleCache, counted: Counted) -> None:
    """A draft is for a sample that is alone, which a second sample ends."""
    runner, rows = Runner.load(bundles("dedup", "bart"), threads=1), [[5, 9, 33, 12, 2], [40, 6, 17, 2]]
    how: dict[str, Any] = {"max_new_tokens": 9, "min_new_tokens": 9}
    expected = runner.generate(rows, **how)
    counted.taken()
    expect_equal(runner.generate(rows, draft_ids=expected.sequences[0].tolist()[1:], **how), expected)
    assert counted.taken() == (9, [])


def test_no_draft_without_an_encoder(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", "gpt2"), threads=1)
    with pytest.raises(GenerationError, match=r"draft_ids=\[3\] .* is for models with an encoder; leave it out"):
        runner.generate([[4, 5]], max_new_tokens=2, draft_ids=[3])


@pytest.mark.parametrize(
    "own",
    [
        {"prompt_ids": [52, 7, 8, 11, 30, 12]},
        {"prompt_ids": [52, 7, 8, 11, 30], "condition_on_prev_tokens": True, "language": "fr", "num_beams": 2},
        {"condition_on_prev_tokens": True, "logprob_threshold": -1.25, "no_speech_threshold": 0.004},
        {"return_token_timestamps": True, "condition_on_prev_tokens": True, "prompt_condition_type": "all-segments"},
    ],
    ids=str,
)
@pytest.mark.parametrize("variant", ["dedup", "xcache"])
def test_recordings_whose_windows_have_a_prompt(
    bundles: BundleCache, counted: Counted, variant: str, own: dict[str, Any]
) -> None:
    _, runner = with_timestamps(bundles, variant)
    waves = window_recordings()
    found = runner.transcribe_segments(waves, batch_size=1, **own)
    steps, runs = counted.taken()
    with counted.by_steps():
        assert runner.transcribe_segments(waves, batch_size=1, **own) == found
    assert len(runs) > 1
    assert steps < counted.taken()[0] - sum(runs) / len(waves)


@pytest.mark.parametrize(
    "own", [{}, {"return_token_timestamps": True}, {"temperature": (0.0, 0.4), "seed": 2}], ids=str
)
def test_a_draft_of_a_recording_goes_on_in_its_next_window(
    bundles: BundleCache, counted: Counted, own: dict[str, Any]
) -> None:
    _, runner = with_timestamps(bundles, "dedup")
    if "temperature" in own:
        own = {**own, "logprob_threshold": -1.25}
    how: dict[str, Any] = {"language": "fr", "task": "transcribe", **own}
    wave = chirp(2.4, low_hz=300)
    (segments,) = runner.transcribe_segments([wave], **how)
    steps, _ = counted.taken()
    tokens = [token for segment in segments for token in segment.tokens]
    (again,) = runner.transcribe_segments([wave], draft_ids=tokens, **how)
    verified, runs = counted.taken()
    assert again == segments
    assert len(runs) > 1 and verified < steps - len(tokens) / 2


def test_live_runs_verify_the_tokens_of_the_last_one(
    bundles: BundleCache, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load_words(bundles, monkeypatch)
    wave = np.concatenate([chirp(0.6, low_hz=300), chirp(0.6, high_hz=900)])

    def heard() -> list[LiveUpdate]:
        live = runner.live(language="en", step_s=0.1)
        return [each for part in np.array_split(wave, 12) for each in live.add(part)] + live.finish()

    found = heard()
    steps, runs = counted.taken()
    with counted.by_steps():
        assert heard() == found
    assert runs and steps < counted.taken()[0]


@pytest.mark.parametrize("change", ["missing", "unknown", "otherwise"])
def test_a_manifest_that_describes_another_graph_is_refused(bundles: BundleCache, change: str) -> None:
    runner = Runner.load(bundles("dedup", "bart"), threads=1)
    bundle, manifest = runner.bundle, runner.manifest
    graph = manifest.prefill
    assert graph is not None
    first, *rest = graph.inputs
    inputs: dict[str, tuple[Any, ...]] = {
        "missing": tuple(own for own in graph.inputs if own.name != manifest.cache_states[0].input),
        "unknown": (*graph.inputs, first.model_copy(update={"name": "lengths"})),
        "otherwise": (first.model_copy(update={"shape": ("R", 2)}), *rest),
    }
    changed = graph.model_copy(update={"inputs": inputs[change]})
    with pytest.raises(BundleError, match=r"unknown or missing in prefill\.onnx: .*; export the model again"):
        OnnxRuntimeCpu(dataclasses.replace(bundle, manifest=manifest.model_copy(update={"prefill": changed})), 1)
