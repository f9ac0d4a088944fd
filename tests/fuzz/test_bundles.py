"""Fuzzing of the bundle reader: the manifest, and the graphs as they are read for their weights.

A bundle whose mutated manifest is accepted is loaded, and its defaults are resolved.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from support.bundles.cache import BundleCache
from support.fuzzing import bytes_like, corpus, fuzz, json_like
from tightbeam.deploy import Runner
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.runtimes._mapped_weights import graph_weights

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]


@pytest.fixture(scope="module")
def folder(bundles: BundleCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of its own; the files are links."""
    made = bundles("dedup", tokenizer=True)
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("bundle") / "bundle", copy_function=os.link))


def _write(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def test_manifests(folder: Path, bundles: BundleCache) -> None:
    whisper = bundles("dedup", "whisper", tokenizer=True)
    valid = [json.loads((made / "bundle.json").read_text()) for made in (folder, whisper)]

    def run(manifest: Any) -> None:
        _write(folder / "bundle.json", json.dumps(manifest).encode())
        repr(Bundle.load(folder, verify=False))
        Runner.load(folder, threads=1, verify=False).options()

    fuzz("manifests", json_like(valid), run, first=valid)


def test_manifest_bytes(folder: Path) -> None:
    valid = [(folder / "bundle.json").read_bytes()]

    def run(data: bytes) -> None:
        _write(folder / "bundle.json", data)
        Bundle.load(folder, verify=False)

    fuzz("manifest-bytes", bytes_like(valid), run, first=[*valid, *corpus("manifests")])


def test_graphs(folder: Path, bundles: BundleCache) -> None:
    _write(folder / "bundle.json", (bundles("dedup", tokenizer=True) / "bundle.json").read_bytes())
    bundle = Bundle.load(folder)
    graphs = [bundle.file(graph) for graph in (bundle.manifest.encoder, bundle.manifest.decoder)]
    valid = [graph.read_bytes() for graph in graphs]

    def run(example: tuple[bytes, int]) -> None:
        _write(graphs[0], example[0])
        for weight in graph_weights(bundle, bundle.manifest.encoder):
            assert 0 <= weight.offset <= weight.end <= bundle.manifest.weights.bytes

    first = [(data, 0) for data in (*valid, *corpus("graphs"))]
    fuzz("graphs", st.tuples(bytes_like([data[-20_000:] for data in valid] + valid), st.just(0)), run, first=first)
