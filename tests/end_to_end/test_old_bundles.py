"""Old bundles stay readable: tests/data has one of each format version, which must load and generate the same tokens.

Made by exporting a checkpoint of ``make_checkpoint("bart", vocab_size=300, tokenizer=True, d_model=12, ...)`` with
``variant="el"``. When the format changes, add a folder; never make an old one again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tightbeam.deploy import Runner
from tightbeam.deploy.bundle.manifest import FORMAT_VERSION
from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.tries.build import build_trie

DATA = Path(__file__).resolve().parents[1] / "data"
EXPECTED = {
    1: [[2, 228, 191, 228, 259, 228, 228, 228, 2], [2, 228, 191, 259, 259, 228, 228, 228, 2]],
    2: [[2, 148, 171, 220, 115, 138, 162, 161, 2], [2, 148, 189, 220, 115, 138, 138, 206, 2]],
}


def test_every_format_version_has_a_stored_bundle() -> None:
    assert sorted(EXPECTED) == list(range(1, FORMAT_VERSION + 1))


@pytest.mark.parametrize("version", EXPECTED)
def test_old_bundle_generates_the_same_tokens(version: int) -> None:
    runner = Runner.load(DATA / f"bundle-format-{version}", threads=1)
    assert runner.manifest.format_version == version
    assert (runner.manifest.provenance is None) == (version == 1)
    found = runner.generate(np.array([[5, 6, 7, 8], [9, 10, 11, 2]]), num_beams=3)
    assert found.sequences.tolist() == EXPECTED[version]
    assert len(runner.generate_text(["the harbour bridge"])) == 1


@pytest.mark.parametrize("version", EXPECTED)
def test_old_bundle_refuses_a_trie(version: int) -> None:
    runner = Runner.load(DATA / f"bundle-format-{version}", threads=1)
    with pytest.raises(GenerationError, match=r"trie=.* cannot be used: this bundle was made before .*export"):
        runner.generate([[5, 6, 7, 8]], num_beams=3, trie=build_trie([[5, 6]]))
