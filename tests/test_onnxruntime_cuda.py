"""The engine on ONNX Runtime's CUDA provider, over plain memory and ONNX Runtime's CPU provider.

What is wrong with an address, a shape, a type, a copy, or the order of them, changes tokens here or fails at once; what
CUDA and its provider do is for `tests/test_onnxruntime_on_gpu.py`.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from bundles import BundleCache
from checkpoints import WHISPER_GENERATION
from cuda_in_memory import CudaInMemory, Work, expect_nothing_left
from session_in_memory import in_memory
from test_causal import runs as causal_runs
from test_departures import ENDING, LENGTHS, often_ended
from test_parity import batch
from test_tensorrt_engine import expect_same, expect_same_result, runs_of
from tightbeam.deploy import Bundle, BundleError, Runner, onnxruntime_cuda
from tightbeam.deploy.device import CudaDevice
from tightbeam.deploy.engines import EngineError
from tightbeam.deploy.onnxruntime_cuda import load_onnxruntime_cuda, placement
from tightbeam.deploy.onnxruntime_engine import OnnxRuntimeEngine
from tightbeam.graph_passes import PRESETS


@pytest.mark.parametrize("variant", PRESETS)
def test_every_variant(bundles: BundleCache, variant: str) -> None:
    path = bundles(variant, "bart")
    made, expected = in_memory(path), Runner.load(path, threads=1)
    expect_same(made.runner, expected, runs_of(expected.manifest.sizes.source_vocabulary))
    assert bool(made.cuda.launches) == (variant != "baseline")
    cuda = made.cuda
    del made
    expect_nothing_left(cuda)


@pytest.mark.parametrize(("family", "variant"), [("t5", "dedup"), ("t5", "xcache"), ("prophetnet", "dedup")])
def test_other_families(bundles: BundleCache, family: str, variant: str) -> None:
    path = bundles(variant, family)
    made, expected = in_memory(path), Runner.load(path, threads=1)
    expect_same(made.runner, expected, runs_of(expected.manifest.sizes.source_vocabulary))
    assert made.cuda.launches


@pytest.mark.parametrize(("family", "variant"), [("gpt2", "baseline"), ("gpt2", "el"), ("llama", "dedup")])
def test_decoder_only(bundles: BundleCache, family: str, variant: str) -> None:
    path = bundles(variant, family)
    expect_same(in_memory(path).runner, Runner.load(path, threads=1), causal_runs())


@pytest.mark.parametrize("variant", ["baseline", "dedup"])
def test_sound(bundles: BundleCache, variant: str) -> None:
    path = bundles(variant, "whisper", generation=WHISPER_GENERATION)
    made, expected = in_memory(path), Runner.load(path, threads=1)
    assert expected.log_mel is not None
    shape = 3, expected.log_mel.mels, expected.log_mel.frames
    features = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    own = {"num_beams": 3, "max_new_tokens": 12}
    expect_same_result(*(r.generate_from_features(features, **own) for r in (made.runner, expected)), own)


@pytest.mark.parametrize("variant", ["baseline", "el", "slim"])
def test_samples_that_leave(bundles: BundleCache, variant: str) -> None:
    path = bundles(variant, "bart")
    made, expected = in_memory(path), Runner.load(path, threads=1)
    ids, mask = batch(expected.manifest.sizes.source_vocabulary, 3, LENGTHS)
    ends = often_ended(bundles.trace("bart")[0].model, ids, mask)
    for own in ENDING:
        expect_same(made.runner, expected, [(ids, mask, {"max_new_tokens": 24, "eos_token_id": ends, **own})])
    assert "within the device" in made.cuda.kinds()


@pytest.mark.parametrize("together", [1, 40, 200])
def test_samples_are_encoded_some_at_a_time(bundles: BundleCache, together: int) -> None:
    """As few as there may be of them so that each part begins where a runtime wants it."""
    path = bundles("baseline", "bart")
    made, expected = in_memory(path, together), Runner.load(path, threads=1)
    vocabulary = expected.manifest.sizes.source_vocabulary
    ids, mask = batch(vocabulary, 1, [32, 7, 20, 32, 3, 9, 30, 16, 21])
    expect_same(made.runner, expected, [(ids, mask, {"num_beams": 2, "max_new_tokens": 5})])
    assert made.encoder.runs == {1: 9, 40: 9, 200: 2}[together]


def test_only_candidates_come_back(bundles: BundleCache) -> None:
    """A step's copies: the small inputs in two pieces, and three arrays [B, C]."""
    path = bundles("el", "bart")
    made = in_memory(path)
    ids, mask = batch(made.runner.manifest.sizes.source_vocabulary, 0)
    B, M = len(ids), 3
    made.runner.generate(ids, mask, num_beams=M, max_new_tokens=8, min_new_tokens=8, no_repeat_ngram_size=2)
    kinds = made.cuda.kinds()
    steps = kinds[kinds.index("execute") + 1 :]
    assert set(steps) == {"host to device", "execute", "device to host", "clear"}
    assert steps.count("execute") == 8
    back = [work.nbytes for work in made.cuda.done if work.kind == "device to host"]
    assert back == [B * 2 * M * width for width in (4, 8, 8)] * 8


def test_a_setting_that_changes_while_it_runs_is_seen(bundles: BundleCache) -> None:
    """It is on the host, where a captured step would have what it was."""
    made = in_memory(bundles("dedup", "bart"))
    expected = OnnxRuntimeEngine(made.runner.bundle, threads=1)
    ids, mask = batch(made.runner.manifest.sizes.source_vocabulary, 0)
    decodings = [engine.begin(ids, mask, 1, 9, 4) for engine in (made.engine, expected)]
    results = []
    for step in range(8):
        for decoding in decodings:
            decoding.inputs["candidates"][...] = 4
            decoding.inputs["lengths"][...] = step + 1
            decoding.inputs["history_lengths"][...] = step + 1
            decoding.inputs["history"][:, : step + 1] = 7
            decoding.inputs["tokens"][...] = 7
            decoding.inputs["positions"][...] = step
            decoding.inputs["normalize"][...] = True
            decoding.inputs["repetition_penalty"][...] = 1.0 if step < 5 else 1.7
            results.append([array.copy() for array in decoding.step()])
    for found, wanted in zip(results[::2], results[1::2], strict=True):
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    assert made.cuda.launches


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
        "steps run without a CUDA graph, slower: what was captured holds a node of the kind cudaGraphNodeTypeHost, "
        "which may not be repeated"
    ]


def test_what_the_session_refuses(bundles: BundleCache) -> None:
    made = in_memory(bundles("dedup", "bart"))
    made.decoder.fault = onnxruntime_cuda.SessionError("out of memory")
    ids, mask = batch(made.runner.manifest.sizes.source_vocabulary, 0)
    with pytest.raises(BundleError, match=r"cannot run the decoder on the GPU: out of memory; run fewer rows together"):
        made.runner.generate(ids, mask)
    graph = made.decoder.graph
    with pytest.raises(onnxruntime_cuda.SessionError):
        graph.set_input("tokens", [-1], 0)
        graph.execute(0)


def test_which_nodes_run_where(bundles: BundleCache) -> None:
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
    with pytest.raises(EngineError, match=r"has no CUDA provider; .* pip install onnxruntime-gpu; .* --device cpu"):
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
            EngineError, match=r"no kernels for CUDA, .* \(make cuda in a clone\), .* TIGHTBEAM_LIBRARY=none"
        ),
    ):
        patch.setattr(onnxruntime_cuda, "cuda_library", lambda: None)
        load_onnxruntime_cuda(bundle)
    monkeypatch.setenv("TIGHTBEAM_LIBRARY", "/nowhere.so")
    with pytest.raises(EngineError, match=r"TIGHTBEAM_LIBRARY is '/nowhere.so', which is no file"):
        load_onnxruntime_cuda(bundle)


@pytest.mark.usefixtures("provider")
def test_with_a_provider_that_does_not_load(bundles: BundleCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime takes the CPU in its place, without an error."""
    bundle = Bundle.load(bundles("dedup", "bart"))
    monkeypatch.setenv("TIGHTBEAM_LIBRARY", "none")
    monkeypatch.setattr(onnxruntime_cuda, "open_device", lambda: CudaDevice(CudaInMemory()))
    opened: Any = OnnxRuntimeEngine(bundle, threads=1).encoder
    monkeypatch.setattr(onnxruntime_cuda, "open_session", lambda *arguments: opened)
    with pytest.raises(EngineError, match=r"could not load its CUDA provider, .*onnxruntime-gpu\[cuda,cudnn\]"):
        load_onnxruntime_cuda(bundle)
