"""The runtime on TensorRT, with plain memory in place of a GPU and ONNX Runtime in place of TensorRT.

What is wrong with an address, a shape, a type, a copy, or the order of them, changes tokens here or fails at once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.references.causal_runs import prompts
from support.references.causal_runs import runs as causal_runs
from support.references.ending_models import ENDING, LENGTHS, often_ended
from support.references.generate_runs import batch
from support.runtimes.comparison import Array, expect_same, expect_same_result, runs_of
from support.runtimes.cuda_in_memory import Work, expect_nothing_left, in_whole_batches
from support.runtimes.tensorrt_in_memory import LIMITS, InMemory, engine_entry, in_memory
from support.slow_cases import slow_unless
from tightbeam.deploy import Bundle, BundleError, InputError, Runner
from tightbeam.deploy.bundle.manifest import TensorEntry
from tightbeam.deploy.errors import EngineFileError
from tightbeam.deploy.search import NullCallback
from tightbeam.graph_passes import PRESETS
from tightbeam.plugins.tensorrt.errors import TensorRTError


@pytest.mark.parametrize(
    ("family", "variant"),
    [
        *(("gpt2", variant) for variant in ("baseline", "el", "kcache")),
        pytest.param("gpt2", "dedup", marks=pytest.mark.slow),
        *(("llama", "dedup"), ("gemma2", "dedup"), ("bloom", "slim")),
    ],
)
def test_decoder_only(bundles: BundleCache, family: str, variant: str) -> None:
    path = bundles(variant, family)
    made = in_memory(path, max_candidates=60)
    expect_same(made.runner, Runner.load(path, threads=1), causal_runs())


def test_compaction_of_prompts(bundles: BundleCache) -> None:
    """Prompts of several lengths, so that the state differs by sample."""
    path = bundles("dedup", "gpt2")
    made, expected = in_memory(path), Runner.load(path, threads=1)
    ids, mask = prompts((9, 4, 1, 7, 2), 1)
    asked = {"eos_token_id": [2, 7, 11, 17, 33, 39, 53], "max_new_tokens": 30, "num_beams": 2}
    expect_same(made.runner, expected, [(ids, mask, {**asked, "no_repeat_ngram_size": size}) for size in (0, 2)])
    assert "within the device" in made.cuda.kinds()


@pytest.mark.parametrize("variant", ["baseline", "dedup", "slim"])
def test_audio(bundles: BundleCache, variant: str) -> None:
    path = bundles(variant, "whisper", generation=WHISPER_GENERATION)
    made, expected = in_memory(path), Runner.load(path, threads=1)
    assert expected.log_mel is not None
    shape = expected.log_mel.mels, expected.log_mel.frames
    settings: tuple[dict[str, Any], ...] = (
        {},
        {"num_beams": 3, "max_new_tokens": 12},
        {"num_beams": 4, "task": "translate"},
    )
    for index, own in enumerate(settings):
        features = np.random.default_rng(index).standard_normal((3 - index, *shape)).astype(np.float32)
        runners = (made.runner, expected)
        expect_same_result(*(runner.generate_from_features(features, **own) for runner in runners), own)


@pytest.mark.parametrize(
    ("variant",), slow_unless([(name,) for name in PRESETS], lambda name: name in ("baseline", "dedup", "hybrid"))
)
def test_compaction(bundles: BundleCache, variant: str) -> None:
    path = bundles(variant, "bart")
    made, expected = in_whole_batches(in_memory(path)), Runner.load(path, threads=1)
    ids, mask = batch(expected.manifest.sizes.source_vocabulary, 3, LENGTHS)
    ends = often_ended(bundles.trace("bart")[0].model, ids, mask)
    for own in ENDING:
        made.cuda.done.clear()
        bound = made.decoder.bindings
        expect_same(made.runner, expected, [(ids, mask, {"max_new_tokens": 24, "eos_token_id": ends, **own})])
        assert "within the device" in made.cuda.kinds()
        assert made.decoder.bindings > bound
        copies = {work.nbytes for work in made.cuda.done if work.kind == "device to host"}
        assert len(copies) > (4 if variant == "baseline" else 2), "fewer and fewer candidates come back"


@pytest.mark.parametrize("capacity", [12, 13, 50])
@pytest.mark.parametrize("variant", ["dedup", "xcache", "baseline"])
def test_unused_capacity(bundles: BundleCache, variant: str, capacity: int) -> None:
    path = bundles(variant, "bart")
    made, expected = in_memory(path, max_new_tokens=capacity), Runner.load(path, threads=1)
    ids, mask = batch(expected.manifest.sizes.source_vocabulary, 1)
    expect_same(made.runner, expected, [(ids, mask, {"num_beams": 3, "max_new_tokens": 12, "min_new_tokens": 12})])


BAN = {"num_beams": 2, "max_new_tokens": 8, "min_new_tokens": 8}


def test_more_and_fewer_banned_tokens(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice among a few tokens bans all others once; the capacity grows, and shrinks again."""
    path = bundles("dedup", "bart")
    monkeypatch.setattr("tightbeam.deploy.runtimes.base.LARGE_BANNED_CAPACITY", 8)
    made, expected = in_memory(path), Runner.load(path, threads=1)
    words = [[9], [12, 13], [4, 5, 6], *([3, token] for token in range(20, 60))]
    settings = ({"bad_words_ids": words}, {"begin_suppress_tokens": list(range(3, 80))}, {"suppress_tokens": [8]})
    ids, mask = batch(expected.manifest.sizes.source_vocabulary, 2)
    expect_same(made.runner, expected, [(ids, mask, {**BAN, **own}) for own in settings])


def test_a_step_is_one_launch_and_brings_back_candidates_alone(bundles: BundleCache) -> None:
    made = in_whole_batches(in_memory(bundles("dedup", "bart")))
    ids, mask = batch(made.runner.manifest.sizes.source_vocabulary, 3, LENGTHS)
    steps: list[list[Work]] = []
    allocations = []
    begin_as_it_is = made.runtime.begin

    def begin(*arguments: Any, **named: Any) -> Any:
        decoding = begin_as_it_is(*arguments, **named)
        assert not any(work.kind == "device to host" for work in made.cuda.done)
        step = decoding.step

        def watched() -> Any:
            made.cuda.done.clear()
            before = made.cuda.allocations
            result = step()
            steps.append(list(made.cuda.done))
            allocations.append(made.cuda.allocations - before)
            return result

        decoding.step = watched  # type: ignore[method-assign]
        return decoding

    made.runtime.begin = begin  # type: ignore[method-assign]
    made.runner.generate(ids, mask, num_beams=3, max_new_tokens=12, min_new_tokens=12, suppress_tokens=[5, 6])
    assert len(steps) == 12 and not any(allocations)
    assert made.cuda.launches == 11, "the first step alone is enqueued piece by piece"
    B, C = len(ids), 6
    for done in steps:
        kinds = [work.kind for work in done]
        assert kinds == ["host to device"] * 2 + ["execute"] + ["device to host"] * 3
        assert [work.nbytes for work in done[-3:]] == [B * C * 4, B * C * 8, B * C * 8]
    bindings = made.decoder.bindings
    assert bindings == len(made.decoder.addresses), "each is bound once"


@pytest.mark.parametrize("variant", ["dedup", "baseline"])
def test_a_batch_uses_the_memory_of_the_one_before(bundles: BundleCache, variant: str) -> None:
    """Nothing is allocated or cleared for a batch whose tensors fit, on the GPU or on the host."""
    path = bundles(variant, "bart")
    made, expected = in_whole_batches(in_memory(path)), Runner.load(path, threads=1)
    ids, mask = batch(expected.manifest.sizes.source_vocabulary, 3, LENGTHS)
    asked = {"num_beams": 3, "max_new_tokens": 10, "suppress_tokens": [8]}
    expect_same(made.runner, expected, [(ids, mask, asked)])
    allocated, cleared = made.cuda.allocations, made.cuda.kinds().count("clear")
    held = sum(size for where in (made.cuda.device, made.cuda.host) for size, _ in where.values())
    assert cleared == len(made.runtime.entry.cache_states) * (2 if variant == "baseline" else 1)
    smaller = {"num_beams": 2, "max_new_tokens": 7, "no_repeat_ngram_size": 2}
    for run in ((ids[::-1].copy(), mask[::-1].copy(), asked), (ids[:2], mask[:2], smaller), (ids, mask, asked)):
        expect_same(made.runner, expected, [run])
    assert (made.cuda.allocations, made.cuda.kinds().count("clear")) == (allocated, cleared)
    longer = {**asked, "max_new_tokens": 30}
    expect_same(made.runner, expected, [(ids, mask, longer), (ids[:1], mask[:1], {**asked, "num_beams": 5})])
    assert made.cuda.allocations > allocated
    made.runner.generate(ids, mask, **longer)
    largest = sum(size for where in (made.cuda.device, made.cuda.host) for size, _ in where.values())
    assert held < largest
    alone = in_memory(path)
    alone.runner.generate(ids, mask, **longer)
    assert largest <= sum(size for where in (alone.cuda.device, alone.cuda.host) for size, _ in where.values())


def test_large_histories_are_uploaded_as_far_as_they_are_read(
    bundles: BundleCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns in use, by powers of two, each with a CUDA graph; none where no step reads them."""
    monkeypatch.setattr("tightbeam.deploy.runtimes.device.step_uploads.WORTH_A_COPY", 1)
    monkeypatch.setattr("tightbeam.deploy.runtimes.device.step_uploads.COLUMNS", 4)
    path = bundles("dedup", "bart")
    made, expected = in_memory(path), Runner.load(path, threads=1)
    ids, mask = batch(expected.manifest.sizes.source_vocabulary, 3, LENGTHS)
    R, B = 3 * len(ids), len(ids)
    for settings, read in (
        ({"num_beams": 3, "no_repeat_ngram_size": 2}, {4: R, 8: R}),
        ({"num_beams": 3, "repetition_penalty": 1.5}, {4: R, 8: R}),
        ({"num_beams": 3}, {4: R}),
        ({"num_beams": 1, "no_repeat_ngram_size": 2}, {8: B}),
        ({"num_beams": 1}, {}),
    ):
        asked = {**settings, "max_new_tokens": 20, "min_new_tokens": 20, "suppress_tokens": [8]}
        before = len(made.cuda.done)
        expect_same(made.runner, expected, [(ids, mask, asked)])
        uploads: list[list[int]] = [[]]
        for work in made.cuda.done[before:]:
            if work.kind == "execute":
                uploads.append([])
            elif work.kind == "host to device":
                uploads[-1].append(work.nbytes)
        for used in range(2, 21):
            columns = next(size for size in (4, 8, 16, 20) if size >= used)
            wide = [rows * width * columns for width, rows in read.items()]
            copies = uploads[used][1:-1]  # between the small inputs and the banned tokens
            assert copies == wide or (columns == 20 and len(copies) <= len(wide)), (settings, used)


def test_interleaved_decodings(bundles: BundleCache) -> None:
    """The two decodings share one context, so each binds it again."""
    made = in_memory(bundles("dedup", "bart"))
    expected = Runner.load(made.runner.bundle.path, threads=1)

    def steps(engine: Any, count: int, seed: int) -> Callable[[], list[Array]]:
        ids, mask = batch(90, seed)
        decoding = engine.begin(ids, mask, 1, count, 2)
        inputs, done = decoding.inputs, []
        inputs["repetition_penalty"][...] = 1.0
        inputs["candidates"][...] = 2

        def step() -> list[Array]:
            inputs["lengths"][:] = inputs["history_lengths"][:] = len(done) + 1
            inputs["positions"][:] = len(done)
            inputs["tokens"][:] = 3 + len(done)
            inputs["history"][:, len(done)] = 3 + len(done)
            done.append([array.copy() for array in decoding.step()])
            return done[-1]

        return step

    first, second = steps(made.runtime, 6, 0), steps(made.runtime, 4, 1)
    alone = [steps(expected.model.runtime, 6, 0), steps(expected.model.runtime, 4, 1)]
    for turn in (0, 1, 0, 0, 0, 1, 1, 1, 0, 0):
        for found, wanted in zip((first, second)[turn](), alone[turn](), strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("limit", "settings", "samples", "said"),
    [
        ("max_batch_size", {}, 9, "9 samples (max_batch_size is 8)"),
        ("max_num_beams", {"num_beams": 6}, 1, "6 beams (max_num_beams is 5)"),
        ("max_source_length", {}, 1, "11 source positions (max_source_length is 10)"),
        ("max_new_tokens", {"max_new_tokens": 51}, 1, "51 new tokens (max_new_tokens is 50)"),
        ("max_candidates", {"num_beams": 2, "eos_token_id": list(range(2, 30))}, 1, "58 candidates of a sample"),
    ],
)
def test_runs_beyond_a_limit(
    bundles: BundleCache, limit: str, settings: dict[str, Any], samples: int, said: str
) -> None:
    limits = {"max_source_length": 10} if limit == "max_source_length" else {}
    made = in_memory(bundles("dedup", "bart"), **limits)
    made = in_whole_batches(made) if limit == "max_batch_size" else made
    ids = np.full((samples, 11), 7)
    with pytest.raises(EngineFileError, match=re.escape(said)) as caught:
        made.runner.generate(ids, callback=NullCallback(), **settings)
    message = str(caught.value)
    assert "\n" not in message and f"build-engine {made.runner.bundle.path} " in message
    larger = re.search(r" --" + limit.replace("_", "-") + r" (\d+)", message)
    assert limit == "max_candidates" or (larger and said.startswith(larger[1]))
    for other, size in {**LIMITS, **limits}.items():
        if other not in (limit, "max_candidates"):
            assert f"--{other.replace('_', '-')} {size}" in message
    made.runner.generate(ids[:1, :4], max_new_tokens=4)


@pytest.mark.parametrize("failure", ["TensorRT says no", "it fails while it is captured"])
def test_without_a_cuda_graph(bundles: BundleCache, caplog: pytest.LogCaptureFixture, failure: str) -> None:
    """The tokens are the same, and one warning is logged."""
    path = bundles("el", "bart")
    made, expected = in_memory(path), Runner.load(path, threads=1)
    if failure == "TensorRT says no":
        made.decoder.capturable = False
    else:
        execute = made.decoder.execute

        def uncapturable(stream: int) -> None:
            if made.cuda.captured is not None:
                raise TensorRTError("a plugin cannot be captured")
            execute(stream)

        made.decoder.execute = uncapturable  # type: ignore[method-assign]
    expect_same(made.runner, expected, runs_of(expected.manifest.sizes.source_vocabulary)[:4])
    assert made.cuda.launches == 0
    assert [record.levelno for record in caplog.records if "without a CUDA graph" in record.message] == [
        logging.WARNING
    ]


# Errors


def one_line_error(made: InMemory, *parts: str, **settings: Any) -> None:
    ids, mask = batch(90, 1)
    with pytest.raises(BundleError) as caught:
        asked = {"num_beams": 2, "max_new_tokens": 6, "min_new_tokens": 6, **settings}
        made.runner.generate(ids, mask, callback=NullCallback(), **asked)  # with a callback nothing runs again
    message = str(caught.value)
    assert "\n" not in message and all(part in message for part in parts), message


def test_errors_of_tensorrt(bundles: BundleCache) -> None:
    made = in_memory(bundles("dedup", "bart"))
    for name, graph in (("encoder", made.encoder), ("decoder", made.decoder)):
        graph.failure = "BeamTopK: something is wrong"
        one_line_error(made, f"TensorRT cannot run the {name} of", graph.failure, "build-engine", "fewer rows")
        graph.failure = ""
    made.runner.generate(np.full((1, 4), 7), max_new_tokens=3)
    cuda = made.cuda
    del made, graph
    expect_nothing_left(cuda)


def test_output_of_another_shape_is_an_error(bundles: BundleCache) -> None:
    made = in_memory(bundles("dedup", "bart"))
    shape = made.decoder.output_shape
    made.decoder.output_shape = lambda name: (*shape(name), 1)  # type: ignore[method-assign]
    one_line_error(made, "'candidate_scores' is [3, 4, 1], expected [3, 4]", "build-engine")


def test_errors_of_the_gpu(bundles: BundleCache) -> None:
    made = in_memory(bundles("dedup", "bart"))
    made.cuda.broken = True
    one_line_error(made, "CUDA: cudaStreamSynchronize failed (cudaErrorIllegalAddress)")


def test_too_little_memory(bundles: BundleCache) -> None:
    path = bundles("dedup", "bart")
    made, expected = in_memory(path), Runner.load(path, threads=1)
    ids, mask = batch(90, 1)
    asked = {"num_beams": 2, "max_new_tokens": 6}
    expect_same(made.runner, expected, [(ids, mask, asked)])
    taken = sum(size for size, _ in made.cuda.device.values())
    made.cuda.capacity = taken
    one_line_error(made, "no memory on the GPU for", "bytes; run fewer rows together", num_beams=4)
    made.cuda.capacity = 3 * taken
    expect_same(made.runner, expected, [(ids, mask, asked)])


@pytest.mark.parametrize("step", [1, 2, 4])
def test_nan_scores(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The kernel writes token -1 for such a sample."""
    made = in_memory(bundles("dedup", "bart"))
    run, ran = made.decoder._run, []

    def broken(shapes: Any, addresses: Any, *others: Any) -> None:
        run(shapes, addresses, *others)
        ran.append(step)
        if len(ran) == step:
            made.cuda.array(addresses["candidate_tokens"], (3, 4), np.int64)[1] = -1

    monkeypatch.setattr(made.decoder, "_run", broken)
    one_line_error(made, f"the model's scores of sample 1 are NaN or infinite after {step} tokens", "weights hold NaN")


def rewritten(tensors: tuple[TensorEntry, ...], name: str, change: dict[str, Any]) -> tuple[TensorEntry, ...]:
    return tuple(tensor.model_copy(update=change) if tensor.name == name else tensor for tensor in tensors)


@pytest.mark.parametrize(
    ("graph", "side", "name", "change", "said"),
    [
        ("encoder", "inputs", "input_ids", {"name": "pixels"}, "'pixels'"),
        ("encoder", "inputs", "input_ids", {"dtype": "int32"}, "'input_ids int32'"),
        ("decoder", "inputs", "beam_scores", {"dtype": "float16"}, "'beam_scores float16'"),
        ("decoder", "inputs", "tokens", {"name": "token"}, "'token'"),
        ("decoder", "inputs", "source.0.key", {"dtype": "bfloat16"}, "'source.0.key'"),
        ("decoder", "inputs", "source.0.key", {"shape": ("B", 3, "S", 12)}, "'S'"),
        ("decoder", "inputs", "cache.1.key", {"dtype": "float8"}, "'cache.1.key float8'"),
        ("decoder", "inputs", "cache.1.key", {"shape": ("R", 3, 51, 12)}, "'cache.1.key'"),
        ("decoder", "inputs", "cache.1.key", {"name": "cache.9.key"}, "'cache.9.key'"),
        ("decoder", "outputs", "cache_out.1.key", {"name": "out"}, "'cache_out.1.key'"),
        ("decoder", "outputs", "candidate_beams", {"dtype": "int32"}, "'candidate_beams'"),
    ],
)
def test_graphs_that_do_not_fit(
    bundles: BundleCache, graph: str, side: str, name: str, change: dict[str, Any], said: str
) -> None:
    path = bundles("dedup", "bart")
    entry = engine_entry(Bundle.load(path))
    old = getattr(entry, graph)
    new = old.model_copy(update={side: rewritten(getattr(old, side), name, change)})
    with pytest.raises(EngineFileError, match="unknown or missing in its graphs") as caught:
        in_memory(path, entry.model_copy(update={graph: new}))
    assert said in str(caught.value) and "build-engine" in str(caught.value)


def test_inputs_on_the_host(bundles: BundleCache) -> None:
    path = bundles("dedup", "bart")
    entry = engine_entry(Bundle.load(path))
    decoder = entry.decoder.model_copy(update={"on_host": ("candidates", "lengths")})
    with pytest.raises(EngineFileError, match="in its graphs: 'lengths';"):
        in_memory(path, entry.model_copy(update={"decoder": decoder}))
    made = in_memory(path, entry)
    graph = replace(made.encoder, on_host=frozenset({"input_ids"}))
    with pytest.raises(EngineFileError, match=r"encoder\.engine reads other inputs on the host than engine\.json says"):
        type(made.runtime)(made.runner.bundle, made.runtime.built, made.runtime.device, lambda _: graph)


@pytest.mark.parametrize("change", [{"dtype": "float16"}, {"name": "another"}])
def test_types_that_are_others_than_engine_json_says(bundles: BundleCache, change: dict[str, str]) -> None:
    made = in_memory(bundles("dedup", "bart"))
    decoder = made.runtime.entry.decoder
    (first, *rest) = decoder.inputs
    other = decoder.model_copy(update={"inputs": (first.model_copy(update=change), *rest)})

    def load(path: Path) -> Any:
        graph = made.encoder if path.stem == "encoder" else made.decoder
        return replace(graph, entry=other) if path.stem == "decoder" else graph

    with pytest.raises(EngineFileError, match=r"decoder\.engine has other inputs or outputs, or of other types, than"):
        type(made.runtime)(made.runner.bundle, made.runtime.built, made.runtime.device, load)


def test_an_engine_that_cannot_be_loaded(bundles: BundleCache) -> None:
    made = in_memory(bundles("dedup", "bart"))

    def load(path: Path) -> Any:
        raise TensorRTError(f"cannot load {path}")

    with pytest.raises(EngineFileError, match=r"cannot load .*encoder\.engine; build one: build-engine "):
        type(made.runtime)(made.runner.bundle, made.runtime.built, made.runtime.device, load)


# Choice of the engine


@pytest.mark.parametrize("engine", ["", "tensor", "tensorrt:", "onnxruntime:a", "TensorRT", None, 3])
def test_engines_that_are_not_known(bundles: BundleCache, engine: Any) -> None:
    with pytest.raises(InputError, match="is not known; pass onnxruntime, tensorrt, or tensorrt:NAME"):
        Runner.load(bundles("dedup", "bart"), engine=engine)


def test_threads_do_nothing_with_tensorrt(bundles: BundleCache) -> None:
    with pytest.raises(InputError, match="threads=2 does nothing with engine='tensorrt'; leave threads out"):
        Runner.load(bundles("dedup", "bart"), engine="tensorrt", threads=2)


@pytest.mark.parametrize(
    ("engine", "said"), [("tensorrt", "has no TensorRT engine"), ("tensorrt:a", "has no engine 'a'; it has none")]
)
def test_a_bundle_without_engines(bundles: BundleCache, engine: str, said: str) -> None:
    """The error is the same on any machine."""
    with pytest.raises(EngineFileError, match=f"{said}; build one: build-engine "):
        Runner.load(bundles("dedup", "bart"), engine=engine)
