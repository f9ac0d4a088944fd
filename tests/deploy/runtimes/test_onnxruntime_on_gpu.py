"""Whole bundles on ONNX Runtime's CUDA provider, on a real GPU: the tokens are those of the CPU. `pytest -m gpu`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.causal import CAUSAL_CLASSES
from support.checkpoints.families import CLASSES, WHISPER_GENERATION
from support.checkpoints.image import IMAGE_FAMILIES, PATCHES, images
from support.checkpoints.speech import RECORDING_FAMILIES
from support.operators.cuda_device import provider_library
from support.references.causal_runs import runs as causal_runs
from support.references.ending_models import ENDING, LENGTHS, often_ended
from support.references.generate_runs import SETTINGS, batch
from support.runtimes.comparison import expect_close, rows_and_tries, runs_of
from support.tolerance import assert_runs_close
from tightbeam.deploy import Runner
from tightbeam.deploy.runtimes.onnxruntime_cuda import PROVIDER, OnnxRuntimeCuda, placement
from tightbeam.graph_passes import PRESETS

pytestmark = pytest.mark.gpu
OURS = {"BeamAttention", "BeamLatentAttention", "BeamTopK", "LatentAttention", "SourceAttention"}
ON_THE_CPU = {
    "Shape",
    "Gather",
    "Concat",
    "Unsqueeze",
    "Squeeze",
    "Cast",
    "Slice",
    "Range",
    "Size",
    "Mul",
    "Add",
    "Div",
    "Sub",
}
"""Operators that may run on the CPU: arithmetic on sizes."""


@pytest.fixture(scope="module", autouse=True)
def machine() -> None:
    provider_library()


def engine_of(runner: Runner) -> OnnxRuntimeCuda:
    engine = runner.model.runtime
    assert isinstance(engine, OnnxRuntimeCuda)
    return engine


def expect_same(found: Any, wanted: Any, settings: dict[str, Any]) -> None:
    np.testing.assert_array_equal(found.sequences, wanted.sequences, err_msg=str(settings))
    if wanted.scores is not None:
        assert_runs_close([(found.scores, wanted.scores, wanted.scores * (1 + 1e-5))])


def both(path: Path) -> tuple[Runner, Runner]:
    return Runner.load(path, device="cuda"), Runner.load(path, threads=2)


def compare(path: Path, generate: Callable[[Runner], list[Any]]) -> Runner:
    found, expected = both(path)
    for a, b in zip(generate(found), generate(expected), strict=True):
        expect_same(a, b, {})
    return found


@pytest.mark.parametrize(
    ("family", "variant"),
    [*(("bart", variant) for variant in PRESETS), ("t5", "dedup"), ("t5", "el"), ("prophetnet", "dedup")],
)
def test_float32_tokens_are_those_of_the_cpu(bundles: BundleCache, family: str, variant: str) -> None:
    path = bundles(variant, family)
    found, expected = both(path)
    vocabulary = expected.manifest.sizes.source_vocabulary
    for index, settings in enumerate(SETTINGS):
        ids, mask = batch(vocabulary, index)
        own = {"max_new_tokens": 18, **settings}
        expect_same(found.generate(ids, mask, **own), expected.generate(ids, mask, **own), own)
    for ids, mask, own in runs_of(vocabulary):
        expect_same(found.generate(ids, mask, **own), expected.generate(ids, mask, **own), own)
    # The first step that cannot be captured ends it for good.
    assert engine_of(found).makes_cuda_graphs == (variant != "baseline")


@pytest.mark.parametrize(
    ("family", "variant"), [("gpt2", "baseline"), ("gpt2", "dedup"), ("gpt2", "el"), ("llama", "dedup")]
)
def test_decoder_only(bundles: BundleCache, family: str, variant: str) -> None:
    compare(bundles(variant, family), lambda runner: [runner.generate(i, m, **own) for i, m, own in causal_runs()])


@pytest.mark.parametrize("variant", ["dedup", "el", "slim"])
def test_audio(bundles: BundleCache, variant: str) -> None:
    def generate(runner: Runner) -> list[Any]:
        assert runner.log_mel is not None
        shape = 3, runner.log_mel.mels, runner.log_mel.frames
        features = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        return [runner.generate_from_features(features, num_beams=M, max_new_tokens=12) for M in (1, 3)]

    compare(bundles(variant, "whisper", generation=WHISPER_GENERATION), generate)


@pytest.mark.parametrize("family", [family for family in CLASSES if family not in ("bart", "whisper")])
def test_encoder_decoder_families(bundles: BundleCache, family: str) -> None:
    def generate(runner: Runner) -> list[Any]:
        runs = runs_of(runner.manifest.sizes.source_vocabulary)
        return [runner.generate(ids, mask, **{"max_new_tokens": 18, **own}) for ids, mask, own in runs]

    compare(bundles("dedup", family), generate)


@pytest.mark.parametrize("family", [family for family in CAUSAL_CLASSES if family not in ("gpt2", "llama")])
def test_decoder_only_families(bundles: BundleCache, family: str) -> None:
    compare(bundles("dedup", family), lambda runner: [runner.generate(i, m, **own) for i, m, own in causal_runs()])


@pytest.mark.parametrize("family", RECORDING_FAMILIES)
def test_recordings(bundles: BundleCache, family: str) -> None:
    def generate(runner: Runner) -> list[Any]:
        assert runner.recordings is not None
        features = runner.recordings.features(np.sin(np.arange(12000, dtype=np.float32) ** 1.2 / 40))
        return [runner.generate_from_features(features[None], num_beams=M, max_new_tokens=12) for M in (1, 3)]

    compare(bundles("dedup", family), generate)


@pytest.mark.parametrize("family", [*IMAGE_FAMILIES, PATCHES])
def test_images(bundles: BundleCache, family: str) -> None:
    def generate(runner: Runner) -> list[Any]:
        assert runner.image_processor is not None
        pixels = [runner.image_processor.pixels(image)[None] for image in images(0)]
        return [runner.generate_from_pixels(each, num_beams=M, max_new_tokens=12) for each in pixels for M in (1, 3)]

    compare(bundles("dedup", family), generate)


@pytest.mark.parametrize("variant", ["dedup", "el", "slim"])
def test_compaction(bundles: BundleCache, variant: str) -> None:
    path = bundles(variant, "bart")
    found, expected = both(path)
    ids, mask = batch(expected.manifest.sizes.source_vocabulary, 3, LENGTHS)
    ends = often_ended(bundles.trace("bart")[0].model, ids, mask)
    for own in ENDING:
        settings = {"max_new_tokens": 24, "eos_token_id": ends, **own}
        expect_same(found.generate(ids, mask, **settings), expected.generate(ids, mask, **settings), settings)


def test_rows_of_logits_and_tries(bundles: BundleCache) -> None:
    path = bundles("dedup", "bart")
    expected, found = Runner.load(path, threads=2), Runner.load(path, device="cuda")
    for seed, settings in enumerate(rows_and_tries()):
        ids, mask = batch(expected.manifest.sizes.source_vocabulary, seed)
        expect_close(*(runner.generate(ids, mask, **settings) for runner in (found, expected)))


@pytest.mark.parametrize("variant", PRESETS)
def test_all_nodes_but_sizes_run_on_the_gpu(bundles: BundleCache, variant: str) -> None:
    engine = engine_of(Runner.load(bundles(variant, "bart"), device="cuda"))
    for session in engine.sessions:
        found = placement(session)
        host = {op for provider, op in found if provider != PROVIDER}
        assert host <= ON_THE_CPU, f"on the CPU: {host}"
    assert OURS & {op for _, op in placement(engine.sessions[1])}
