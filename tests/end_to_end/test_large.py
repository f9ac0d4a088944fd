"""The sizes of bart-large-cnn, random weights: cost of an export, cache bytes of variants. Minutes, gigabytes."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tightbeam.deploy import Runner
from tightbeam.deploy.bundle.engine_files import load_engine
from tightbeam.deploy.bundle.reader import Bundle

ROOT = Path(__file__).resolve().parents[2]
PEAK_BYTES = 6_000_000_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large") / "bart-large-random"
    command = [sys.executable, str(ROOT / "tools" / "make_checkpoint.py"), str(folder), "--shape", "bart-large-cnn"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_large_exports_fit_in_memory_and_el_caches_96_times_less(checkpoint: Path, tmp_path: Path) -> None:
    cache_bytes, tokens = {}, {}
    ids = np.random.default_rng(0).integers(5, 50000, (2, 64))
    for variant in ("baseline", "dedup", "el"):
        command = [str(Path(sys.executable).parent / "export-model"), str(checkpoint)]
        subprocess.run([*command, "--variant", variant, "--output", str(tmp_path / variant)], check=True)
        runner = Runner.load(tmp_path / variant)
        tokens[variant] = runner.generate(ids, max_new_tokens=6, min_new_tokens=0).sequences.tolist()
        cache_bytes[variant] = runner.cache_bytes[0]
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < PEAK_BYTES
    assert tokens["baseline"] == tokens["dedup"] == tokens["el"]
    assert cache_bytes["baseline"] == 96 * cache_bytes["el"] == 4 * cache_bytes["dedup"]
    assert cache_bytes["el"] == 2 * 64 * 1024 * 4


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_engine_builds_in_memory(checkpoint: Path, tmp_path: Path, precision: str) -> None:
    tools = Path(sys.executable).parent
    export = [tools / "export-model", checkpoint, "--variant", "el", "--no-check", "--output", tmp_path / "el"]
    subprocess.run(export, check=True)
    command = [tools / "build-engine", tmp_path / "el", "--compute-capability", "80,120", "--precision", precision]
    subprocess.run(command, check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < PEAK_BYTES
    entry = load_engine(Bundle.load(tmp_path / "el"), f"sm80-sm120-{precision}").entry
    assert entry.decoder.plugins == {"BeamAttention": 12, "LatentAttention": 12, "BeamTopK": 1}
    assert entry.limits.max_source_length == 1024
    if precision == "fp16":
        assert entry.precision_error is not None and entry.precision_error.error < 0.01
