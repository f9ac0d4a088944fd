"""The scheduler: whatever comes when, each sample gets what it gets alone."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.options import resolve_options
from support.searches.driver import search
from support.searches.made_up_decoder import DEFAULTS, EOS, VOCABULARY, Faults, MadeUpAlone, MadeUpRuntime, options_of
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import ExecutionError
from tightbeam.deploy.runtimes import onnxruntime_cpu
from tightbeam.deploy.runtimes.onnxruntime_cpu import CpuDecoding, OnnxRuntimeCpu
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.scheduling.scheduler import FailedSample, Scheduler
from tightbeam.deploy.search import SearchResult
from tightbeam.graph_passes import PRESETS

ASKED = st.fixed_dictionaries(
    {
        "max_length": st.integers(5, 14),
        "num_beams": st.sampled_from([1, 1, 3, 3, 3, 4]),
        "early_stopping": st.sampled_from([True, False, "never"]),
        "length_penalty": st.sampled_from([-2.0, 0.0, 0.5, 1.0, 2.0]),
    },
    optional={
        "num_return_sequences": st.integers(1, 3),
        "eos_token_id": st.sampled_from([[EOS, 7], [7, 9], EOS]),
        "min_length": st.integers(0, 10),
        "forced_bos_token_id": st.sampled_from([0, 8]),
        "forced_eos_token_id": st.sampled_from([EOS, [EOS, 5]]),
        "suppress_tokens": st.lists(st.integers(10, 16), max_size=5),
        "bad_words_ids": st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=3), min_size=1, max_size=3),
    },
)
SAMPLES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 16), min_size=1, max_size=9),  # source or prompt
        st.integers(0, 4),  # which settings
        st.integers(0, 6),  # turns before it comes
        st.one_of(st.none(), st.none(), st.none(), st.integers(0, 12)),  # turns before it is cancelled
        st.sampled_from([(), (), (5,), (5, -1, 6)]),  # the decoder prompt behind the start token
        st.sampled_from([None, None, None, None, None, 0, 1, 3, -1, -2, -4]),  # the fault of its source
    ),
    min_size=1,
    max_size=9,
)


@hypothesis.settings(max_examples=80, deadline=None, derandomize=True)
@hypothesis.given(
    asked=st.lists(ASKED, min_size=5, max_size=5),
    like_first=st.booleans(),
    samples=SAMPLES,
    max_rows=st.integers(1, 15),
    decoder_only=st.booleans(),
)
def test_each_sample_gets_what_it_gets_alone(
    asked: list[dict[str, Any]],
    like_first: bool,
    samples: list[Any],
    max_rows: int,
    decoder_only: bool,
) -> None:
    """Tokens and scores are equal bit for bit, over random arrivals, lengths, settings, cancellations and failures.

    What is certain of a sample in any turn is the beginning of its best sequence.
    """
    faults: Faults = {}
    runtime = MadeUpRuntime(faults)
    scheduler = Scheduler(runtime, max(max_rows, *(given["num_beams"] for given in asked)))
    made: list[Sample] = []
    samples.sort(key=lambda sample: sample[2])  # numbers ascend in the order of arrival
    for number, (tokens, which, _, _, prompt, fault) in enumerate(samples):
        given = dict(asked[which])
        if like_first:  # one batch key, so that samples do share steps
            given["num_beams"], given["eos_token_id"] = asked[0]["num_beams"], EOS
        given["num_return_sequences"] = min(given["num_beams"], given.get("num_return_sequences", 1))
        if decoder_only:
            given["max_length"] += len(tokens)
        options = resolve_options(
            DEFAULTS,
            given,
            vocab_size=VOCABULARY,
            max_positions=40,
            prompt_length=len(tokens) if decoder_only else None,
            after_start=() if decoder_only else prompt,
            choices=(4, 6, 11),
        )
        made.append(Sample.of_tokens(number, tokens, options, decoder_only=decoder_only))
        if fault is not None:
            faults[tuple(made[-1].source.tolist())] = fault
    found: dict[int, SearchResult | None] = {}
    certain: dict[int, list[int]] = {sample.number: [] for sample in made}
    turn = 0
    while scheduler.active or turn <= 6:
        for sample, (_, _, comes, *_) in zip(made, samples, strict=True):
            if comes == turn:
                scheduler.add(sample)
        for number, (_, _, comes, leaves, *_) in enumerate(samples):
            if leaves is not None and comes + leaves == turn and number not in found:
                scheduler.cancel(number)
        for ended in scheduler.turn():
            assert ended.number not in found
            if not isinstance(ended, FailedSample):
                assert ended.result.sequences[0, : len(certain[ended.number])].tolist() == certain[ended.number]
            found[ended.number] = None if isinstance(ended, FailedSample) else ended.result
        for number, known in certain.items():
            known += scheduler.certain(number, len(known)).tolist()
        turn += 1
        assert turn < 1000
    assert not any(lane.waiting._taken or lane.cancelled for lane in scheduler._lanes.values())
    if not faults:
        assert all(len(decoding.sources) == 0 for decoding in runtime.opened)
    for number, (sample, (_, _, _, leaves, *_)) in enumerate(zip(made, samples, strict=True)):
        if number not in found:
            assert leaves is not None
            continue
        alone = MadeUpAlone(sample.source.tolist(), sample.options, faults.get(tuple(sample.source.tolist())))
        beginnings = None if sample.prompt is None else sample.prompt[None]
        try:
            expected = search(alone, sample.options, 1, beginnings)
        except ExecutionError:
            assert found[number] is None
            continue
        np.testing.assert_array_equal(found[number].sequences, expected.sequences)
        if expected.scores is None:
            assert found[number].scores is None
        else:
            np.testing.assert_array_equal(found[number].scores, expected.scores)


@pytest.mark.parametrize("error", [ExecutionError("no memory"), ZeroDivisionError()], ids=["runtime", "defect"])
def test_a_batch_that_cannot_be_opened_fails_each_of_its_samples(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    runtime = MadeUpRuntime()
    monkeypatch.setattr(runtime, "open", fail)
    scheduler = Scheduler(runtime, 2)
    for number in range(3):
        scheduler.add(Sample.of_tokens(number, [number + 4], options_of(max_length=5)))
    ended = [each for _ in range(20) for each in scheduler.turn()]
    assert sorted(each.number for each in ended) == [0, 1, 2] and not scheduler.active
    assert all(isinstance(each, FailedSample) and each.error is error for each in ended)


def test_samples_join_a_running_batch_and_leave_it_alone() -> None:
    """A sample that comes in the middle takes the next step beside those that are there."""
    runtime = MadeUpRuntime()
    scheduler = Scheduler(runtime, 2)
    options = options_of(max_length=12, min_length=12, eos_token_id=[EOS])
    for number in range(2):
        scheduler.add(Sample.of_tokens(number, [number + 4], options))
    scheduler.turn()
    (decoding,) = runtime.opened
    scheduler.add(Sample.of_tokens(2, [9], options))
    scheduler.add(Sample.of_tokens(3, [10], options_of(max_length=3, min_length=3)))
    for _ in range(9):
        assert scheduler.turn() == []
        assert decoding.sources == [[4], [5]]
    scheduler.cancel(0)
    (finished,) = scheduler.turn()  # its eleventh token
    assert finished.number == 1
    assert scheduler.turn() == []
    assert decoding.sources == [[9], [10]]
    assert decoding.inputs["lengths"].tolist() == [1, 1]
    assert [finished.number for finished in scheduler.turn()] == [3]
    assert decoding.sources == [[9]] and len(runtime.opened) == 1
    scheduler.cancel(3)  # it has ended, so there is nothing to remember
    assert not any(lane.cancelled for lane in scheduler._lanes.values())


def test_the_oldest_is_encoded_next_with_others_of_its_length() -> None:
    runtime = MadeUpRuntime()
    scheduler = Scheduler(runtime, 8)
    options = options_of(max_length=3)
    for number, length in enumerate((6, 2, 7, 3, 6, 20)):
        scheduler.add(Sample.of_tokens(number, [4] * length, options))
    while scheduler.active:
        scheduler.turn()
    assert [[len(row) for row in rows] for rows in runtime.encoded] == [[6, 7, 6], [2, 3], [20]]


# Over bundles

FAMILIES = [
    *(("bart", variant) for variant in PRESETS),
    ("t5", "dedup"),
    ("prophetnet", "dedup"),
    ("gpt2", "dedup"),
    ("llama", "dedup"),
]


@pytest.mark.parametrize(("family", "variant"), FAMILIES)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_tokens_and_scores_over_bundles(bundles: BundleCache, family: str, variant: str, num_beams: int) -> None:
    runner = Runner.load(bundles(variant, family), threads=1)
    generator = np.random.default_rng(5)
    scheduler = runner.scheduler(3 * num_beams)
    expected: dict[int, SearchResult] = {}
    found: dict[int, SearchResult] = {}
    waiting = []
    for number, length in enumerate((5, 11, 1, 3, 14, 2, 7, 9)):
        tokens = generator.integers(4, runner.manifest.sizes.source_vocabulary, length).tolist()
        asked = {
            "num_beams": num_beams,
            "max_new_tokens": int(generator.integers(3, 16)),
            "min_new_tokens": int(generator.integers(0, 3)),
            "no_repeat_ngram_size": 2,
            "length_penalty": float(generator.choice([0.5, 1.0, 2.0])),
            "eos_token_id": generator.integers(4, 60, 1).tolist(),
            "pad_token_id": 1,
        }
        expected[number] = runner.generate([tokens], **asked)
        waiting.append(runner.sample(number, tokens, asked))
    turns = 0
    while waiting or scheduler.active:
        if waiting and turns % 2 == 0:
            scheduler.add(waiting.pop(0))
        found |= {finished.number: finished.result for finished in scheduler.turn()}
        turns += 1
    scheduler.close()
    for number, own in expected.items():
        np.testing.assert_array_equal(found[number].sequences, own.sequences, err_msg=f"sample {number}")
        if own.scores is not None:
            np.testing.assert_allclose(found[number].scores, own.scores, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_whisper_with_and_without_a_language(bundles: BundleCache, num_beams: int) -> None:
    """Samples whose decoder prompts differ, or whose language the model chooses, share steps."""
    runner = Runner.load(bundles("dedup", "whisper", generation=WHISPER_GENERATION), threads=1)
    assert runner.log_mel is not None
    features = np.random.default_rng(4).standard_normal((6, runner.log_mel.mels, runner.log_mel.frames), np.float32)
    scheduler, found = runner.scheduler(4 * num_beams), {}
    asked: list[dict[str, Any]] = [{}, {"language": "de"}, {"language": "en", "task": "translate"}] * 2
    for number, (own, given) in enumerate(zip(features, asked, strict=True)):
        scheduler.add(runner.model.sample_of_features(number, own, {"num_beams": num_beams, **given}))
    turns = 0
    while scheduler.active:
        found |= {finished.number: finished.result for finished in scheduler.turn()}
        turns += 1
    assert turns > 8
    for number, given in enumerate(asked):
        alone = runner.generate_from_features(features[number : number + 1], num_beams=num_beams, **given)
        np.testing.assert_array_equal(found[number].sequences, alone.sequences)


def test_buffers_grow_where_a_later_sample_is_longer(bundles: BundleCache) -> None:
    """Source, cache and history outgrow their buffers while other samples run."""
    runner = Runner.load(bundles("el", "bart"), threads=1)
    scheduler = runner.scheduler(8)
    asked = [{"max_new_tokens": count, "min_new_tokens": count, "num_beams": 2} for count in (6, 14, 9, 40)]
    rows = [np.random.default_rng(count).integers(4, 90, count).tolist() for count in (2, 9, 30, 60)]
    found = {}
    for number, (row, given) in enumerate(zip(rows, asked, strict=True)):
        scheduler.add(runner.sample(number, row, given))
        found |= {finished.number: finished.result for finished in scheduler.turn()}
    while scheduler.active:
        found |= {finished.number: finished.result for finished in scheduler.turn()}
    scheduler.close()
    for number, (row, given) in enumerate(zip(rows, asked, strict=True)):
        np.testing.assert_array_equal(found[number].sequences, runner.generate([row], **given).sequences)


def test_lines_of_one_length_are_encoded_in_their_places(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their encodings are not copied, and tokens are those of each alone."""
    runner = Runner.load(bundles("dedup", "bart"), threads=1)
    encode, targets = OnnxRuntimeCpu.encode, []

    def watched(self: OnnxRuntimeCpu, *args: Any, **named: Any) -> Any:
        targets.append(args[-1] is not None)
        return encode(self, *args, **named)

    monkeypatch.setattr(OnnxRuntimeCpu, "encode", watched)
    monkeypatch.setattr(onnxruntime_cpu, "ENCODED_TOGETHER", 24)
    scheduler, found = runner.scheduler(6), {}
    rows = np.random.default_rng(3).integers(4, 90, (7, 12)).tolist()
    asked = [{"num_beams": 2, "max_new_tokens": 3 + number % 4, "min_new_tokens": 3} for number in range(7)]
    for number, (row, given) in enumerate(zip(rows, asked, strict=True)):
        scheduler.add(runner.sample(number, row, given))
    while scheduler.active:
        found |= {finished.number: finished.result for finished in scheduler.turn()}
    assert targets[:2] == [True, False]  # two fit into an empty batch, and not into the place that is left then
    for number, (row, given) in enumerate(zip(rows, asked, strict=True)):
        np.testing.assert_array_equal(found[number].sequences, runner.generate([row], **given).sequences)


@pytest.mark.parametrize("variant", ["dedup", "el"])
def test_joining_copies_nothing_of_other_samples(
    bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    """Buffers stay where they are, so does what others have in them, and each number of samples is bound once."""
    runner = Runner.load(bundles(variant, "bart"), threads=1)
    join, bind, bound = CpuDecoding.join, CpuDecoding._bind, []

    def watched(self: CpuDecoding, *args: Any, **sizes: Any) -> None:
        before = {name: array for views in (self._source, self._in_place) for name, array in views.items()}
        copies = {name: array.copy() for name, array in before.items()}
        join(self, *args, **sizes)
        for name, array in (self._source | self._in_place).items():
            if copies[name].size:
                assert array.ctypes.data == before[name].ctypes.data
                np.testing.assert_array_equal(array[: len(copies[name])], copies[name])

    monkeypatch.setattr(CpuDecoding, "join", watched)
    monkeypatch.setattr(CpuDecoding, "_bind", lambda self: (bound.append(self._used), bind(self))[1])
    scheduler = runner.scheduler(4)
    finished = 0
    for number in range(8):
        count = 8 - number % 5
        scheduler.add(runner.sample(number, [7, 8, 9], {"max_new_tokens": count, "min_new_tokens": count}))
        finished += len(scheduler.turn())
    while scheduler.active:
        finished += len(scheduler.turn())
    assert finished == 8
    assert sorted(bound) == [1, 2, 3, 4]
