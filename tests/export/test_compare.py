"""The difference of two forms of a model."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.bundles.cache import BundleCache
from tightbeam.deploy.bundle.manifest import MANIFEST, WEIGHTS
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.bundle.writer import file_entry
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.export.accuracy.compare import compare_runtimes, sources_of


def changed(source: Path, target: Path, change: Any) -> Bundle:
    """A copy of a bundle with ``change`` applied to its weights, in place, as float32."""
    shutil.copytree(source, target)
    data = bytearray((target / WEIGHTS).read_bytes())
    header = int.from_bytes(data[:8], "little")
    numbers = np.frombuffer(data, np.float32, (len(data) - 8 - header) // 4, 8 + header)
    change(numbers)
    (target / WEIGHTS).write_bytes(data)
    manifest = Bundle.load(source).manifest
    manifest = manifest.model_copy(update={"weights": file_entry(target, WEIGHTS)})
    (target / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
    return Bundle.load(target)


@pytest.mark.parametrize("family", ["bart", "whisper", "gpt2", "prophetnet"])
def test_bundle_does_not_differ_from_itself(bundles: BundleCache, family: str) -> None:
    bundle = Bundle.load(bundles("dedup", family))
    engine = OnnxRuntimeCpu(bundle, 1)
    found = compare_runtimes(bundle, engine, engine, sources_of(bundle), steps=5)
    assert (found.error, found.differing, found.steps) == (0.0, 0, 4 * 5)


def test_equal_scores_have_no_error(bundles: BundleCache, tmp_path: Path) -> None:
    """A model of zeros, whose tokens are all as likely: nothing is divided by the spread of its scores."""
    bundle = changed(bundles("dedup"), tmp_path / "zeros", lambda numbers: numbers.fill(0))
    engine = OnnxRuntimeCpu(bundle, 1)
    assert compare_runtimes(bundle, engine, engine, sources_of(bundle), steps=2).error == 0


def test_the_error_is_that_of_torch_s_log_probabilities(bundles: BundleCache) -> None:
    """Two checkpoints of one shape, so that there is something to measure."""
    bundle, other = Bundle.load(bundles("dedup")), Bundle.load(bundles("dedup", seed=1))
    engines = OnnxRuntimeCpu(bundle, 1), OnnxRuntimeCpu(other, 1)
    sources = sources_of(bundle)
    found = compare_runtimes(bundle, *engines, sources, steps=1)

    def log_probabilities(**arguments: Any) -> Any:
        model = bundles.trace("bart", **arguments)[0].model
        start = torch.full((len(sources.source), 1), model.generation_config.decoder_start_token_id)
        with torch.no_grad():
            logits = model(torch.tensor(sources.source), torch.tensor(sources.mask), start).logits
        return logits[:, 0].log_softmax(-1).numpy()

    wanted, given = log_probabilities(), log_probabilities(seed=1)
    spread = wanted - wanted.mean(axis=1, keepdims=True)
    assert found.error == pytest.approx(np.sqrt(np.square(given - wanted).mean() / np.square(spread).mean()), rel=1e-4)
    assert found.differing == (given.argmax(axis=1) != wanted.argmax(axis=1)).sum()
    few = compare_runtimes(bundle, *engines, sources, steps=1, candidates=60)
    both = np.where(
        (np.argsort(np.argsort(-wanted)) < 60) & (np.argsort(np.argsort(-given)) < 60), given - wanted, np.nan
    )
    kept = np.where(np.isnan(both), np.nan, wanted)
    spread = kept - np.nanmean(kept, axis=1, keepdims=True)
    assert few.error == pytest.approx(np.sqrt(np.nanmean(np.square(both)) / np.nanmean(np.square(spread))), rel=1e-4)


def test_nan_is_an_infinite_error(bundles: BundleCache, tmp_path: Path) -> None:
    bundle = Bundle.load(bundles("dedup"))
    other = changed(bundle.path, tmp_path / "other", lambda numbers: numbers.fill(np.nan))
    engines = OnnxRuntimeCpu(bundle, 1), OnnxRuntimeCpu(other, 1)
    assert compare_runtimes(bundle, *engines, sources_of(bundle), steps=3).error == math.inf


def test_comparison_as_a_program(bundles: BundleCache) -> None:
    folder = str(bundles("el"))
    command = [sys.executable, "-m", "tightbeam.export.accuracy.compare", "--times", folder, folder, "16"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *steps, last = done.stdout.splitlines()
    assert steps == [f"{number} {len(steps)}" for number in range(1, 2 * 16 + 2 * 5 * 5 + 1)]
    found = json.loads(last)
    times = found.pop("times")
    assert found == {"error": 0.0, "steps": 64, "differing": 0}
    assert all(second > 0 for seconds in times.values() for second in seconds)
