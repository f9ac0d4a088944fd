"""The memory of a process by formula, against processes that ran, and the parts that differ between bundles."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.bundles.cache import BundleCache
from tightbeam.deploy import Bundle
from tightbeam.deploy.model.bundle_facts import Workload, facts_of, process_memory
from tightbeam.deploy.runtimes.process.memory import LIBRARIES, buffer_bytes

OLD = Path(__file__).parents[2] / "data" / "bundle-format-1"
WORKLOAD = Workload(batch_size=2, num_beams=4, source_length=40, new_tokens=20)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
@pytest.mark.parametrize("family", ["bart", "llama"])
def test_a_process_has_the_memory_of_the_formula(bundles: BundleCache, family: str) -> None:
    folder = bundles("dedup", family)
    memory = process_memory(Bundle.load(folder), WORKLOAD)
    assert memory is not None
    command = [
        sys.executable,
        "-m",
        "tightbeam.deploy.commands.run_model",
        str(folder),
        "-",
        "--ids",
        "--batch-size",
        "2",
    ]
    line = f"{[5 + index for index in range(40)]}\n"
    command = [*command, "--num-beams", "4", "--max-new-tokens", "20"]
    done = subprocess.run(command, input=2 * line, capture_output=True, text=True, check=True)
    (peak,) = re.findall(r"([\d,]+) MB at most", done.stderr)
    assert 0.75 < memory.total / (1e6 * int(peak.replace(",", ""))) < 1.33


def test_weights_are_mapped_or_packed(bundles: BundleCache) -> None:
    now = Bundle.load(bundles("dedup"))
    memory, old = process_memory(now, WORKLOAD), process_memory(Bundle.load(OLD), WORKLOAD)
    assert memory is not None and old is not None
    assert (memory.mapped_weights, memory.packed_weights) == (now.manifest.weights.bytes, 0)
    assert old.packed_weights > Bundle.load(OLD).manifest.weights.bytes / 2 > 2 * old.mapped_weights


def test_facts_have_the_parts_and_their_sum(bundles: BundleCache) -> None:
    facts = facts_of(Bundle.load(bundles("dedup")), WORKLOAD)
    total = facts["process"].pop("total")
    assert sum(facts["process"].values()) == total
    assert facts["process"]["caches"] == facts["cache"]["total"] and facts["process"]["libraries"] == LIBRARIES
    half = Bundle.load(bundles("dedup", precision="fp16"))
    assert facts_of(half, WORKLOAD)["process"] is None


def test_buffers_are_of_the_samples_that_are_encoded_together() -> None:
    def nbytes(B: int, N: int, score_heads: int = 0) -> int:
        return buffer_bytes(B, 1, N, width=8, vocabulary=100, score_heads=score_heads) - 800 * B

    assert nbytes(1, 100) == 4 * 12 * 8 * 100
    assert nbytes(9, 100) == nbytes(5, 100) == 5 * nbytes(1, 100)
    assert nbytes(9, 1000) == nbytes(1, 1000)
    assert nbytes(1, 1000, 3) - nbytes(1, 1000) == 4 * 3 * 1000**2
