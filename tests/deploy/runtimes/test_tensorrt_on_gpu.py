"""Whole engines on a real GPU: built for it, their tokens those of ONNX Runtime. `pytest -m gpu`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.references.generate_runs import SETTINGS, batch
from support.runtimes.comparison import expect_close, rows_and_tries
from support.tolerance import assert_runs_close
from tightbeam.deploy import Runner
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.deploy.runtimes.tensorrt import load_tensorrt_runtime
from tightbeam.export.accuracy.compare import compare_runtimes, sources_of
from tightbeam.export.tensorrt.build import build_engine
from tightbeam.export.tensorrt.options import EngineOptions
from tightbeam.graph_passes import PRESETS
from tightbeam.plugins.tensorrt.distribution import CURRENT, gpu_capability, load_tensorrt
from tightbeam.plugins.tensorrt.errors import TensorRTError

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def machine() -> None:
    if gpu_capability() is None:
        pytest.skip("no GPU")
    try:
        load_tensorrt().resolve_capabilities([CURRENT])
    except TensorRTError as error:  # none is installed, or it has no engines for such a GPU
        pytest.skip(str(error))


def built(bundles: BundleCache, variant: str, family: str, folder: Path, **settings: Any) -> Path:
    target = Path(shutil.copytree(bundles(variant, family), folder / "bundle"))
    build_engine(target, EngineOptions(**settings))
    return target


@pytest.mark.parametrize(
    ("family", "variant"),
    [*(("bart", variant) for variant in PRESETS), ("t5", "el"), ("prophetnet", "dedup"), ("llama", "dedup")],
)
def test_float32_tokens_are_those_of_onnx_runtime(
    bundles: BundleCache, variant: str, family: str, tmp_path: Path
) -> None:
    folder = built(bundles, variant, family, tmp_path)
    expected, found = Runner.load(folder, threads=2), Runner.load(folder, engine="tensorrt")
    for index, settings in enumerate(SETTINGS):
        if settings.get("num_beams", 1) > 4:
            continue  # more than the engine was built for
        ids, mask = batch(expected.manifest.sizes.source_vocabulary, index)
        wanted = expected.generate(ids, mask, max_new_tokens=18, **settings)
        given = found.generate(ids, mask, max_new_tokens=18, **settings)
        np.testing.assert_array_equal(given.sequences, wanted.sequences, err_msg=str(settings))
        if wanted.scores is not None:
            assert_runs_close([(given.scores, wanted.scores, wanted.scores * (1 + 1e-5))])


def test_rows_of_logits_and_tries(bundles: BundleCache, tmp_path: Path) -> None:
    folder = built(bundles, "dedup", "bart", tmp_path)
    expected, found = Runner.load(folder, threads=2), Runner.load(folder, engine="tensorrt")
    for seed, settings in enumerate(rows_and_tries()):
        ids, mask = batch(expected.manifest.sizes.source_vocabulary, seed)
        expect_close(*(runner.generate(ids, mask, **settings) for runner in (found, expected)))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_is_as_wrong_as_was_measured(bundles: BundleCache, precision: str, tmp_path: Path) -> None:
    folder = built(bundles, "el", "bart", tmp_path, precision=precision)
    runner = Runner.load(folder)
    engine = load_tensorrt_runtime(runner.bundle)
    measured = engine.entry.precision_error
    assert measured is not None
    found = compare_runtimes(
        runner.bundle,
        OnnxRuntimeCpu(runner.bundle),
        engine,
        sources_of(runner.bundle),
        candidates=engine.entry.limits.max_candidates,
    )
    assert found.error <= 2 * measured.error
