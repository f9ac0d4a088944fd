"""The runtime on ONNX Runtime's CUDA provider, over plain memory and ONNX Runtime's CPU provider.

What is wrong with an address, a shape, a type, a copy, or the order of them, changes tokens here or fails at once; what
CUDA and its provider do is for `tests/deploy/runtimes/test_onnxruntime_on_gpu.py`.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.references.causal_runs import runs as causal_runs
from support.references.ending_models import ENDING, LENGTHS, often_ended
from support.references.generate_runs import batch
from support.runtimes.comparison import SOURCES, expect_same, expect_same_result, runs_of
from support.runtimes.cuda_in_memory import CudaInMemory, Work, in_whole_batches
from support.runtimes.session_in_memory import ON_HOST, in_memory
from tightbeam.deploy import Bundle, BundleError, Runner
from tightbeam.deploy.errors import DeviceError, ExecutionError, RuntimeSetupError
from tightbeam.deploy.runtimes import onnxruntime_cuda
from tightbeam.deploy.runtimes.base import Decoding
from tightbeam.deploy.runtimes.device.cuda import CudaDevice
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.deploy.runtimes.onnxruntime_cuda import (
    OnnxRuntimeCuda,
    inputs_on_host,
    load_onnxruntime_cuda,
    placement,
)


@pytest.mark.parametrize(("family", "variant"), [("gpt2", "baseline"), ("gpt2", "el"), ("llama", "dedup")])
def test_decoder_only(bundles: BundleCache, family: str, variant: str) -> None:
    path = bundles(variant, family)
    expect_same(in_memory(path).runner, Runner.load(path, threads=1), causal_runs())


@pytest.mark.parametrize("variant", ["baseline", "dedup"])
def test_audio(bundles: BundleCache, variant: str) -> None:
    path = bundles(variant, "whisper", generation=WHISPER_GENERATION)
    made, expected = in_memory(path), Runner.load(path, threads=1)
    assert expected.log_mel is not None
    shape = 3, expected.log_mel.mels, expected.log_mel.frames
    features = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    own = {"num_beams": 3, "max_new_tokens": 12}
    expect_same_result(*(r.generate_from_features(features, **own) for r in (made.runner, expected)), own)


@pytest.mark.parametrize("variant", ["baseline", pytest.param("el", marks=pytest.mark.slow), "slim"])
def test_compaction(bundles: BundleCache, variant: str) -> None:
    path = bundles(variant, "bart")
    made, expected = in_memory(path), Runner.load(path, threads=1)
    ids, mask = batch(expected.manifest.sizes.source_vocabulary, 3, LENGTHS)
    ends = often_ended(bundles.trace("bart")[0].model, ids, mask)
    for own in ENDING:
        expect_same(made.runner, expected, [(ids, mask, {"max_new_tokens": 24, "eos_token_id": ends, **own})])
    assert "within the device" in made.cuda.kinds()


@pytest.mark.parametrize("together", [1, 40, 200])
def test_encoder_runs_in_parts(bundles: BundleCache, together: int) -> None:
    """The smallest parts that are aligned."""
    path = bundles("baseline", "bart")
    made, expected = in_memory(path, together), Runner.load(path, threads=1)
    vocabulary = expected.manifest.sizes.source_vocabulary
    ids, mask = batch(vocabulary, 1, [32, 7, 20, 32, 3, 9, 30, 16, 21])
    expect_same(made.runner, expected, [(ids, mask, {"num_beams": 2, "max_new_tokens": 5})])
    assert made.encoder.runs == {1: 9, 40: 9, 200: 2}[together]


def test_encoder_inputs_of_each_part_are_aligned(bundles: BundleCache) -> None:
    """5 token ids are 40 bytes: the 32nd sample is the next one that is aligned."""
    path = bundles("dedup", "bart")
    made, expected = in_whole_batches(in_memory(path, 1)), Runner.load(path, threads=1)
    ids, mask = batch(expected.manifest.sizes.source_vocabulary, 1, [5, 2] * 20)
    expect_same(made.runner, expected, [(ids, mask, {"num_beams": 2, "max_new_tokens": 3})])
    assert made.encoder.runs == 2


def test_only_candidates_are_copied_to_the_host(bundles: BundleCache) -> None:
    """A step's copies: the small inputs in two pieces, and three arrays [B, C]."""
    path = bundles("el", "bart")
    made = in_whole_batches(in_memory(path))
    ids, mask = batch(made.runner.manifest.sizes.source_vocabulary, 0)
    B, M = len(ids), 3
    made.runner.generate(ids, mask, num_beams=M, max_new_tokens=8, min_new_tokens=8, no_repeat_ngram_size=2)
    kinds = made.cuda.kinds()
    steps = kinds[kinds.index("execute") + 1 :]
    assert set(steps) == {"host to device", "execute", "device to host"}
    assert steps.count("execute") == 8
    back = [work.nbytes for work in made.cuda.done if work.kind == "device to host"]
    assert back == [B * 2 * M * width for width in (4, 8, 8)] * 8


def feed(decodings: Sequence[Decoding], step: int, token: int = 7, normalize: bool = True) -> list[list[Any]]:
    """The results of one greedy step of each."""
    results = []
    for decoding in decodings:
        decoding.inputs["candidates"][...] = 4
        decoding.inputs["lengths"][...] = step + 1
        decoding.inputs["history_lengths"][...] = step + 1
        decoding.inputs["history"][:, step] = token
        decoding.inputs["tokens"][...] = token
        decoding.inputs["positions"][...] = step
        decoding.inputs["normalize"][...] = normalize
        decoding.inputs["repetition_penalty"][...] = 1
        results.append([array.copy() for array in decoding.step()])
    return results


def test_a_setting_changed_during_a_run_takes_effect(bundles: BundleCache) -> None:
    """The setting is in host memory; a captured step would use the old value."""
    made = in_memory(bundles("dedup", "bart"))
    expected = OnnxRuntimeCpu(made.runner.bundle, threads=1)
    ids, mask = batch(made.runner.manifest.sizes.source_vocabulary, 0)
    decodings = [engine.begin(ids, mask, 1, 9, 4) for engine in (made.runtime, expected)]
    for step in range(8):
        found, wanted = feed(decodings, step, normalize=step < 5)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
        assert (wanted[0] < 0).all() == (step < 5), "logits of any sign, or log-probabilities"
    assert made.cuda.launches == 4 + 2


def test_beams_counted_on_the_gpu(bundles: BundleCache) -> None:
    """CUDA's provider reads num_beams on the GPU."""
    path = bundles("baseline", "bart")
    made, expected = in_memory(path, on_host=ON_HOST - {"num_beams"}), Runner.load(path, threads=1)
    assert "num_beams" in {tensor.name for tensor in made.runtime.encoder_interface.inputs}
    expect_same(made.runner, expected, runs_of(expected.manifest.sizes.source_vocabulary)[2:4])


@pytest.mark.parametrize("variant", ["baseline", "dedup"])
def test_interleaved_decodings(bundles: BundleCache, variant: str) -> None:
    """Each binds the decoder anew; one that goes on alone is captured again. They are of one size, and one alone may
    have the caches of the decoding before."""
    made = in_memory(bundles(variant, "bart"))
    expected = OnnxRuntimeCpu(made.runner.bundle, threads=1)
    batches = [batch(made.runner.manifest.sizes.source_vocabulary, index, SOURCES[0]) for index in (0, 1)]
    made.runtime.begin(*batches[0], 1, 12, 4).close()
    begun = [[engine.begin(ids, mask, 1, 12, 4) for engine in (made.runtime, expected)] for ids, mask in batches]
    turns = [0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 1]
    for turn, which in enumerate(turns):
        found, wanted = feed(begun[which], turns[:turn].count(which), 7 + turn)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=str(turn))
    assert made.cuda.launches == (0 if variant == "baseline" else 2 + 2 + 2)


def test_a_partly_bound_step_is_bound_again(bundles: BundleCache) -> None:
    made = in_memory(bundles("dedup", "bart"))
    expected = OnnxRuntimeCpu(made.runner.bundle, threads=1)
    ids, mask = batch(made.runner.manifest.sizes.source_vocabulary, 0)
    first, *decodings = [engine.begin(ids, mask, 1, 9, 4) for engine in (made.runtime, made.runtime, expected)]
    feed([first], 0)
    set_input = made.decoder.set_input

    def refuse(name: str, shape: Sequence[int], address: int) -> None:
        raise onnxruntime_cuda.SessionError("not now")

    made.decoder.set_input = refuse
    with pytest.raises(ExecutionError, match="cannot run the decoder on the GPU: not now"):
        feed(decodings[:1], 0)
    made.decoder.set_input = set_input
    for step in range(3):
        found, wanted = feed(decodings, step)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_encoder_that_fails_late(bundles: BundleCache) -> None:
    """The failure appears at the synchronization before the decoder begins."""
    made = in_memory(bundles("dedup", "bart"))
    ids, mask = batch(made.runner.manifest.sizes.source_vocabulary, 0)
    made.cuda.broken = True
    with pytest.raises(DeviceError, match=r"cudaStreamSynchronize failed \(cudaErrorIllegalAddress\)"):
        made.runtime.begin(ids, mask, 1, 9, 4)
    made.cuda.broken = False
    made.runtime.begin(ids, mask, 1, 9, 4)


def test_caches_of_another_size_are_freed_before_the_encoder_runs(bundles: BundleCache) -> None:
    made = in_memory(bundles("dedup", "bart"))
    ids, mask = batch(made.runner.manifest.sizes.source_vocabulary, 0)
    made.runner.generate(ids, mask, num_beams=8, max_new_tokens=60)
    held = sum(memory.nbytes for memory in made.runtime.on_device.blocks.values())
    execute, taken = made.encoder.execute, []

    def measured(stream: int) -> None:
        taken.append(sum(nbytes for nbytes, _ in made.cuda.device.values()))
        execute(stream)

    made.encoder.execute = measured
    longer = np.tile(ids, (1, 3)), np.tile(mask, (1, 3))
    made.runner.generate(*longer, num_beams=1, max_new_tokens=3)
    assert taken[0] < held


def test_new_memory_is_cleared(bundles: BundleCache) -> None:
    """Caches are read past the written positions, under a mask; banned tokens are written where there are some."""
    made = in_memory(bundles("dedup", "bart"))
    ids, mask = batch(made.runner.manifest.sizes.source_vocabulary, 0)
    decoding = made.runtime.begin(ids, mask, 1, 9, 4)
    made.runtime.device.synchronize()
    for memories in decoding._caches.values():
        for memory in memories:
            assert not made.cuda.array(memory.address, (memory.nbytes,), np.uint8).any()
    decoding.reserve_banned(3)
    assert (decoding.inputs["banned"] == -1).all() and decoding.inputs["banned"].shape[1] >= 3


def test_a_manifest_with_unknown_names(bundles: BundleCache) -> None:
    made = in_memory(bundles("dedup", "bart"))
    manifest = made.runner.manifest
    decoder = manifest.decoder.model_copy(update={"outputs": manifest.decoder.outputs[1:]})
    changed = replace(made.runner.bundle, manifest=manifest.model_copy(update={"decoder": decoder}))
    with pytest.raises(BundleError, match="unknown or missing in its graphs: 'candidate_scores'"):
        OnnxRuntimeCuda(changed, made.runtime.device, *made.runtime.sessions, on_host=lambda session: ON_HOST)


def test_sessions_are_destroyed_before_their_stream(bundles: BundleCache) -> None:
    made = in_memory(bundles("dedup", "bart"))
    cuda, streams = made.cuda, []
    for graph in (made.encoder, made.decoder):
        weakref.finalize(graph.graph, lambda: streams.append(list(cuda.streams)))
    del graph, made
    gc.collect()
    assert streams == [[cuda.STREAM]] * 2 and not cuda.streams


def test_a_step_that_cannot_be_captured_runs_all_the_same(
    bundles: BundleCache, caplog: pytest.LogCaptureFixture
) -> None:
    path = bundles("dedup", "bart")
    made, expected = in_memory(path), Runner.load(path, threads=1)
    execute = made.decoder.execute

    def also_on_the_host(stream: int) -> None:
        execute(stream)
        made.cuda.enqueue(stream, Work("host", 0, lambda: None))

    made.decoder.execute = also_on_the_host
    with caplog.at_level(logging.WARNING):
        expect_same(made.runner, expected, runs_of(expected.manifest.sizes.source_vocabulary)[:3])
    assert made.cuda.launches == 0
    assert [record.message for record in caplog.records] == [
        "steps run without a CUDA graph, slower: the captured step holds a node of the kind cudaGraphNodeTypeHost, "
        "which may not be repeated"
    ]


def test_a_step_that_cannot_be_captured_yet_is_captured_later(
    bundles: BundleCache, caplog: pytest.LogCaptureFixture
) -> None:
    made = in_memory(bundles("dedup", "bart"))
    expected = OnnxRuntimeCpu(made.runner.bundle, threads=1)
    ids, mask = batch(made.runner.manifest.sizes.source_vocabulary, 0)
    decodings = [engine.begin(ids, mask, 1, 9, 4) for engine in (made.runtime, expected)]
    capturable = iter([False, False])
    made.decoder.can_be_captured = lambda stream: next(capturable, True)
    launches = []
    for step in range(5):
        found, wanted = feed(decodings, step)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
        launches.append(made.cuda.launches)
    assert launches == [0, 0, 0, 1, 2]
    assert made.runtime.makes_cuda_graphs and not caplog.records


def test_errors_of_the_session(bundles: BundleCache) -> None:
    made = in_memory(bundles("dedup", "bart"))
    made.decoder.failure = onnxruntime_cuda.SessionError("out of memory")
    ids, mask = batch(made.runner.manifest.sizes.source_vocabulary, 0)
    with pytest.raises(BundleError, match=r"cannot run the decoder on the GPU: out of memory; run fewer rows together"):
        made.runner.generate(ids, mask)
    made.decoder.failure = onnxruntime_cuda.SessionError("cuDNN is unavailable for CUDA Execution Provider")
    with pytest.raises(
        BundleError, match=r"cuDNN is unavailable .*; pip install 'onnxruntime-gpu\[cuda,cudnn\]'; or run"
    ):
        made.runner.generate(ids, mask)
    graph = made.decoder.graph
    with pytest.raises(onnxruntime_cuda.SessionError):
        graph.set_input("tokens", [-1], 0)
        graph.execute(0)


def test_operators_without_kernels_for_cuda(bundles: BundleCache) -> None:
    """ONNX Runtime would run them on the CPU, and take an address of the GPU for one of the host."""
    for name in ("cache.0.key", "lengths", "input_ids"):
        with pytest.raises(
            RuntimeSetupError, match=rf"would read '{name}' in host memory, .* TIGHTBEAM_LIBRARY, .* --device cpu"
        ):
            in_memory(bundles("dedup", "bart"), on_host=ON_HOST | {name})


def test_types_that_are_others_than_the_manifest_says(bundles: BundleCache) -> None:
    """The types determine the bytes of memory."""
    bundle = Bundle.load(bundles("dedup", "bart"))
    decoder = bundle.manifest.decoder
    for field in ("inputs", "outputs"):
        first, *rest = getattr(decoder, field)
        other = decoder.model_copy(update={field: (first.model_copy(update={"dtype": "bool"}), *rest)})
        changed = replace(bundle, manifest=bundle.manifest.model_copy(update={"decoder": other}))
        with pytest.raises(
            BundleError, match=r"decoder\.onnx has inputs or outputs of other types than bundle\.json says"
        ):
            OnnxRuntimeCpu(changed, threads=1)


class Recorded:
    """A session that records its bindings and the options of its runs."""

    def __init__(self) -> None:
        self.bound: list[tuple[Any, ...]] = []
        self.options: Any = None

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name="a", type="tensor(int64)"), SimpleNamespace(name="b", type="tensor(float16)")]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name="c", type="tensor(float)")]

    def get_input_memory_infos(self) -> list[Any]:
        return [SimpleNamespace(name="Cpu"), SimpleNamespace(name="Cuda")]

    def io_binding(self) -> Recorded:
        return self

    def bind_input(self, *arguments: Any) -> None:
        self.bound.append(arguments)

    bind_output = bind_input

    def run_with_iobinding(self, binding: Recorded, options: Any) -> None:
        assert binding is self
        self.options = options


def test_bindings_and_options_of_a_session() -> None:
    session: Any = Recorded()
    on_host = inputs_on_host(session)
    assert on_host == {"a"}
    graph = onnxruntime_cuda.SessionGraph(session, "cuda", on_host)
    graph.set_input("a", (1,), 256)
    graph.set_input("b", (2, 3), 512)
    graph.set_output("c", (), 768)
    assert session.bound == [
        ("a", "cpu", 0, np.int64, [1], 256),
        ("b", "cuda", 0, np.float16, [2, 3], 512),
        ("c", "cuda", 0, np.float32, [], 768),
    ]
    graph.execute(0)
    assert session.options.get_run_config_entry("disable_synchronize_execution_providers") == "1"


def test_placement_of_nodes(bundles: BundleCache) -> None:
    bundle = Bundle.load(bundles("dedup", "bart"))
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = ort.InferenceSession(str(bundle.file(bundle.manifest.decoder)), options)
    found = placement(session)
    assert found["CPUExecutionProvider", "LayerNormalization"] == 3 * bundle.manifest.sizes.L + 1
    assert {provider for provider, _ in found} == {"CPUExecutionProvider"}


def test_without_a_cuda_provider(bundles: BundleCache) -> None:
    if onnxruntime_cuda.PROVIDER in ort.get_available_providers():
        pytest.skip("this onnxruntime has it")
    with pytest.raises(
        RuntimeSetupError, match=r"has no CUDA provider; .* pip install onnxruntime-gpu; .* --device cpu"
    ):
        Runner.load(bundles("dedup", "bart"), device="cuda")


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "get_available_providers", lambda: [onnxruntime_cuda.PROVIDER])


@pytest.mark.usefixtures("provider")
def test_without_the_cuda_library(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle.load(bundles("dedup", "bart"))
    monkeypatch.delenv("TIGHTBEAM_LIBRARY", raising=False)
    with (
        monkeypatch.context() as patch,
        pytest.raises(
            RuntimeSetupError,
            match=r"no kernels for CUDA, .* -C cmake.define.TIGHTBEAM_CUDA=ON .* TIGHTBEAM_LIBRARY=none",
        ),
    ):
        patch.setattr(onnxruntime_cuda, "cuda_library", lambda: None)
        load_onnxruntime_cuda(bundle)
    monkeypatch.setenv("TIGHTBEAM_LIBRARY", "/nowhere.so")
    with pytest.raises(RuntimeSetupError, match=r"TIGHTBEAM_LIBRARY is '/nowhere.so', which is not a file"):
        load_onnxruntime_cuda(bundle)


@pytest.mark.usefixtures("provider")
def test_options_of_the_sessions(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions run on the runtime's stream, with the library, and allocate no memory in a captured step."""
    bundle = Bundle.load(bundles("dedup", "bart"))
    engine = OnnxRuntimeCpu(bundle, threads=1)
    library = Path(__file__)
    registered, opened = [], []

    class Session:
        def __init__(self, session: Any) -> None:
            self.session = session

        def __getattr__(self, name: str) -> Any:
            return getattr(self.session, name)

        def get_providers(self) -> list[str]:
            return [onnxruntime_cuda.PROVIDER, "CPUExecutionProvider"]

        def get_input_memory_infos(self) -> list[Any]:
            inputs = self.session.get_inputs()
            return [SimpleNamespace(name="Cpu" if tensor.name in ON_HOST else "Cuda") for tensor in inputs]

    def open_session(bundle: Bundle, graph: Any, options: Any, providers: Any, weights: Any) -> Any:
        opened.append((options, providers))
        assert registered[-1] == (options, library)
        return Session(engine.encoder if graph is bundle.manifest.encoder else engine.decoder)

    monkeypatch.setenv("TIGHTBEAM_LIBRARY", str(library))
    monkeypatch.setattr(onnxruntime_cuda, "open_device", lambda: CudaDevice(CudaInMemory()))
    monkeypatch.setattr(onnxruntime_cuda, "open_session", open_session)
    monkeypatch.setattr(onnxruntime_cuda, "register_library", lambda *arguments: registered.append(arguments))
    made = load_onnxruntime_cuda(bundle)
    assert len(opened) == 2
    for options, providers in opened:
        assert not options.enable_mem_pattern
        assert options.get_session_config_entry("session.use_device_allocator_for_initializers") == "1"
        (name, own), second = providers
        assert (name, second) == (onnxruntime_cuda.PROVIDER, "CPUExecutionProvider")
        assert own["user_compute_stream"] == str(made.device.stream)
        assert (own["arena_extend_strategy"], own["use_tf32"]) == ("kNextPowerOfTwo", "0")


@pytest.mark.usefixtures("provider")
def test_cuda_provider_that_does_not_load(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime takes the CPU in its place, without an error."""
    bundle = Bundle.load(bundles("dedup", "bart"))
    monkeypatch.setenv("TIGHTBEAM_LIBRARY", "none")
    monkeypatch.setattr(onnxruntime_cuda, "open_device", lambda: CudaDevice(CudaInMemory()))
    opened: Any = OnnxRuntimeCpu(bundle, threads=1).encoder
    monkeypatch.setattr(onnxruntime_cuda, "open_session", lambda *arguments: opened)
    with pytest.raises(RuntimeSetupError, match=r"could not load its CUDA provider, .*onnxruntime-gpu\[cuda,cudnn\]"):
        load_onnxruntime_cuda(bundle)
