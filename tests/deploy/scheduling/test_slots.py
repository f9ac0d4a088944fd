"""Joining on a GPU, over plain memory: fixed slots, one captured step, and the tokens of each sample alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.runtimes import session_in_memory, tensorrt_in_memory
from support.runtimes.cuda_in_memory import expect_nothing_left
from support.runtimes.devices import DEVICES, Made
from support.slow_cases import slow_unless
from tightbeam.deploy import Runner
from tightbeam.deploy.scheduling.events import NullEvents
from tightbeam.deploy.scheduling.scheduler import FailedSample, FinishedSample, Scheduler
from tightbeam.graph_passes import PRESETS

JOINED = [preset for preset in PRESETS if preset != "baseline"]
"""The presets without a cache that grows by a position for all rows at once."""
FAMILIES = [*(("bart", preset) for preset in JOINED), ("t5", "dedup"), ("prophetnet", "dedup"), ("gpt2", "dedup")]
SLOTS = 3


def run(scheduler: Scheduler, samples: list[Any], every: int = 2) -> dict[int, Any]:
    """Results or errors by number; a sample comes in every second turn."""
    found: dict[int, Any] = {}
    waiting, turns = list(samples), 0
    while waiting or scheduler.active:
        if waiting and turns % every == 0:
            scheduler.add(waiting.pop(0))
        for ended in scheduler.turn():
            found[ended.number] = ended.result if isinstance(ended, FinishedSample) else ended.error
        turns += 1
    return found


@pytest.mark.parametrize(
    ("family", "variant", "device"),
    slow_unless(
        [(*each, device) for each in FAMILIES for device in DEVICES],
        lambda family, variant, device: (
            device == "tensorrt" or (family, variant) in (("bart", "dedup"), ("gpt2", "dedup"))
        ),
    ),
)
def test_each_sample_gets_what_it_gets_alone(bundles: BundleCache, family: str, variant: str, device: str) -> None:
    """Samples of different lengths and settings join and leave at different steps."""
    path = bundles(variant, family)
    cpu, made = Runner.load(path, threads=1), DEVICES[device](path)
    generator = np.random.default_rng(6)
    expected, samples = [], []
    for number, length in enumerate((5, 11, 1, 3, 14, 2, 7)):
        tokens = generator.integers(4, cpu.manifest.sizes.source_vocabulary, length).tolist()
        asked = {
            "num_beams": 2,
            "max_new_tokens": int(generator.integers(3, 12)),
            "min_new_tokens": int(generator.integers(0, 3)),
            "no_repeat_ngram_size": 2,
            "length_penalty": float(generator.choice([0.5, 1.0, 2.0])),
            "eos_token_id": generator.integers(4, 60, 1).tolist(),
            "pad_token_id": 1,
        }
        expected.append(cpu.generate([tokens], **asked))
        samples.append(made.runner.sample(number, tokens, asked))
    scheduler = made.runner.scheduler(2 * SLOTS)
    found = run(scheduler, samples)
    scheduler.close()
    for number, own in enumerate(expected):
        np.testing.assert_array_equal(found[number].sequences, own.sequences, err_msg=f"sample {number}")
        np.testing.assert_allclose(found[number].scores, own.scores, rtol=1e-5, atol=1e-6)
    cuda = made.cuda
    del made, samples, scheduler, found
    expect_nothing_left(cuda)


@pytest.mark.parametrize("device", DEVICES)
def test_whisper_with_and_without_a_language(bundles: BundleCache, device: str) -> None:
    path = bundles("dedup", "whisper", generation=WHISPER_GENERATION)
    cpu, made = Runner.load(path, threads=1), DEVICES[device](path)
    assert cpu.log_mel is not None
    features = np.random.default_rng(4).standard_normal((4, cpu.log_mel.mels, cpu.log_mel.frames), np.float32)
    asked: list[dict[str, Any]] = [{}, {"language": "de"}, {"language": "en", "task": "translate"}, {}]
    samples = [
        made.runner.model.sample_of_features(number, own, {"num_beams": 2, **given})
        for number, (own, given) in enumerate(zip(features, asked, strict=True))
    ]
    found = run(made.runner.scheduler(4), samples, every=1)
    for number, given in enumerate(asked):
        alone = cpu.generate_from_features(features[number : number + 1], num_beams=2, **given)
        np.testing.assert_array_equal(found[number].sequences, alone.sequences)


def addresses(made: Made) -> dict[str, Any]:
    """The buffers that the decoder reads and writes."""
    return dict(made.decoder.bound if isinstance(made, session_in_memory.InMemory) else made.decoder.addresses)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("beams", [1, 3])
def test_one_captured_step_serves_all_who_come(bundles: BundleCache, device: str, beams: int) -> None:
    """Samples join and leave, each slot has several; nothing is bound or captured again, and of a running
    sample's caches nothing is copied."""
    made = DEVICES[device](bundles("dedup", "bart"))
    generator = np.random.default_rng(2)
    counts = [9, 4, 12, 3, 7, 5, 12, 4, 6, 3]
    samples = [
        made.runner.sample(
            number,
            generator.integers(4, 60, 6).tolist(),
            {"max_new_tokens": count, "min_new_tokens": count, "num_beams": beams},
        )
        for number, count in enumerate(counts)
    ]
    scheduler, found = made.runner.scheduler(SLOTS * beams), {}
    longest = samples.pop(2)  # which the buffers are made for
    scheduler.add(longest)
    for _ in range(3):  # the first step is enqueued, the second one captured
        found |= {ended.number: ended for ended in scheduler.turn()}
    captured, launched, bound = len(made.cuda.graphs), made.cuda.launches, addresses(made)
    done, turns = len(made.cuda.done), 0
    while samples or scheduler.active:
        if samples:
            scheduler.add(samples.pop(0))
        found |= {ended.number: ended for ended in scheduler.turn()}
        turns += 1
        assert len(made.cuda.graphs) == captured == 1
    assert made.cuda.launches - launched == turns, "every step is a launch"
    assert addresses(made) == bound
    assert sorted(found) == list(range(len(counts)))
    moved = [work.nbytes for work in made.cuda.done[done:] if work.kind == "within the device"]
    source = len(made.runtime.encoder_interface.outputs) + 1  # and the mask
    assert len(moved) == (len(counts) - 1) * source, "its source alone, for each sample that joins"
    for number, count in enumerate(counts):
        assert isinstance(found[number], FinishedSample)
        assert found[number].result.sequences.shape[1] == count + 1


@pytest.mark.parametrize("device", DEVICES)
def test_buffers_grow_where_a_later_sample_is_longer(bundles: BundleCache, device: str) -> None:
    """Source, cache and history outgrow their buffers while other samples run."""
    path = bundles("el", "bart")
    cpu, made = Runner.load(path, threads=1), DEVICES[device](path)
    asked = [{"max_new_tokens": count, "min_new_tokens": count, "num_beams": 2} for count in (6, 14, 9, 40)]
    rows = [np.random.default_rng(count).integers(4, 60, count).tolist() for count in (2, 9, 30, 60)]
    samples = [
        made.runner.sample(number, row, given) for number, (row, given) in enumerate(zip(rows, asked, strict=True))
    ]
    found = run(made.runner.scheduler(8), samples, every=1)
    for number, (row, given) in enumerate(zip(rows, asked, strict=True)):
        np.testing.assert_array_equal(found[number].sequences, cpu.generate([row], **given).sequences)


def test_cancelled_sample_frees_its_slot(bundles: BundleCache) -> None:
    made = tensorrt_in_memory.in_memory(bundles("dedup", "bart"))
    settings = {"max_new_tokens": 30, "min_new_tokens": 30, "num_beams": 1}
    scheduler = made.runner.scheduler(1)
    scheduler.add(made.runner.sample(0, [5, 6, 7], settings))
    scheduler.turn()
    scheduler.cancel(0)
    scheduler.add(made.runner.sample(1, [8, 9], {**settings, "max_new_tokens": 3, "min_new_tokens": 3}))
    found = run(scheduler, [])
    assert list(found) == [1]
    np.testing.assert_array_equal(
        found[1].sequences, made.runner.generate([[8, 9]], num_beams=1, max_new_tokens=3, min_new_tokens=3).sequences
    )


def test_two_groups_take_turns_of_several_steps(bundles: BundleCache) -> None:
    """A change of the group binds the decoder anew, so it is seldom; both go on."""
    path = bundles("dedup", "bart")
    cpu, made = Runner.load(path, threads=1), tensorrt_in_memory.in_memory(path)
    scheduler = made.runner.scheduler(6, NullEvents())
    asked = [{"max_new_tokens": 40, "min_new_tokens": 40, "num_beams": beams} for beams in (1, 3, 1, 3)]
    for number, given in enumerate(asked):
        scheduler.add(made.runner.sample(number, [5 + number, 9], given))
    found: dict[int, Any] = {}
    while scheduler.active:
        found |= {ended.number: ended for ended in scheduler.turn()}
    scheduler.close()
    for number, given in enumerate(asked):
        expected = cpu.generate([[5 + number, 9]], **given).sequences
        np.testing.assert_array_equal(found[number].result.sequences, expected)
    steps = made.cuda.kinds().count("execute")
    assert made.cuda.launches > steps // 2


def test_sample_that_the_engine_was_not_built_for_fails_alone(bundles: BundleCache) -> None:
    """Neither a batch that is larger than the engine's, nor one sample that is too long, is the others' fault."""
    path = bundles("dedup", "bart")
    made = tensorrt_in_memory.in_memory(path, max_batch_size=2, max_source_length=12, max_new_tokens=10)
    cpu = Runner.load(path, threads=1)
    settings = {"num_beams": 2, "max_new_tokens": 5, "min_new_tokens": 5}
    rows = [[5, 6, 7], list(range(4, 24)), [8, 9], [10, 11, 12], [13]]
    asked = [settings, settings, settings, {**settings, "max_new_tokens": 11}, {**settings, "num_beams": 2}]
    samples = [made.runner.sample(number, row, given) for number, row, given in zip(range(5), rows, asked, strict=True)]
    found = run(made.runner.scheduler(8), samples, every=1)
    assert "20 source positions (max_source_length is 12)" in str(found[1])
    assert "11 new tokens (max_new_tokens is 10)" in str(found[3])
    for number in (0, 2, 4):
        np.testing.assert_array_equal(found[number].sequences, cpu.generate([rows[number]], **asked[number]).sequences)


def test_too_little_memory_for_the_slots(bundles: BundleCache) -> None:
    """Every sample ends with the error; none waits for ever."""
    made = session_in_memory.in_memory(bundles("dedup", "bart"))
    made.cuda.capacity = 1 << 16
    scheduler, ended = made.runner.scheduler(12), []
    for number in range(2):
        scheduler.add(made.runner.sample(number, [5, 6], {"max_new_tokens": 40, "num_beams": 3}))
    for _ in range(6):
        ended += scheduler.turn()
    assert not scheduler.active
    assert sorted(each.number for each in ended) == [0, 1]
    for each in ended:
        assert isinstance(each, FailedSample) and "run fewer rows together" in str(each.error)
