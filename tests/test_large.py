"""The sizes of bart-large-cnn, random weights: what an export costs, what each variant keeps. Minutes, gigabytes."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tightbeam.deploy import Runner

ROOT = Path(__file__).parent.parent
PEAK_BYTES = 6_000_000_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large") / "bart-large-random"
    command = [sys.executable, str(ROOT / "tools" / "make_checkpoint.py"), str(folder), "--shape", "bart-large-cnn"]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def test_exports_stay_in_memory_and_el_keeps_96_times_less(checkpoint: Path, tmp_path: Path) -> None:
    kept, tokens = {}, {}
    ids = np.random.default_rng(0).integers(5, 50000, (2, 64))
    for variant in ("baseline", "dedup", "el"):
        command = [str(Path(sys.executable).parent / "export-model"), str(checkpoint)]
        subprocess.run([*command, "--variant", variant, "--output", str(tmp_path / variant)], check=True)
        runner = Runner.load(tmp_path / variant)
        tokens[variant] = runner.generate(ids, max_new_tokens=6, min_new_tokens=0).sequences.tolist()
        kept[variant] = runner.cache_bytes[0]
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < PEAK_BYTES
    assert tokens["baseline"] == tokens["dedup"] == tokens["el"]
    assert kept["baseline"] == 96 * kept["el"] == 4 * kept["dedup"]
    assert kept["el"] == 2 * 64 * 1024 * 4
