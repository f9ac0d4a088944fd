"""Engines of the tests' bundles, built for two GPUs that need not exist, and the graphs that TensorRT parses."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from support.bundles.cache import BundleCache
from support.references.generate_runs import batch
from tightbeam.deploy import Runner
from tightbeam.deploy.bundle.manifest import MANIFEST, WEIGHTS
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.bundle.writer import file_entry
from tightbeam.export.tensorrt.build import build_engine, write_tensorrt_graphs
from tightbeam.export.tensorrt.limits import engine_limits
from tightbeam.export.tensorrt.options import EngineOptions
from tightbeam.export.writing.entries import graph_entries, state_entries
from tightbeam.graph_passes.tensorrt.plugin_nodes import from_plugin_nodes
from tightbeam.plugins.ops import DOMAIN, OPERATORS
from tightbeam.plugins.tensorrt.distribution import load_tensorrt
from tightbeam.plugins.tensorrt.errors import TensorRTError

__all__ = ["CAPABILITIES", "as_bundle", "build", "check_builds", "check_tokens_of_tensorrt_graphs"]

try:
    CAPABILITIES = ["80", "120"] if load_tensorrt().is_rtx else ["current"]
except TensorRTError as error:
    pytest.skip(str(error), allow_module_level=True)


def build(bundle: Path, on_progress: Any = lambda what, done, steps: None, **settings: Any) -> Any:
    """Build without compiled kernels, which take seconds each."""
    options = EngineOptions(capabilities=CAPABILITIES, force=True, **{"kernels": False, **settings})
    return build_engine(bundle, options, on_progress=on_progress)


def check_builds(source: Path, folder: Path) -> None:
    """Build a copy of the bundle ``source``; each of its operators that a GPU has a kernel for must be a plugin."""
    target = Path(shutil.copytree(source, folder / "bundle"))
    entry = build(target).entry
    model = onnx.load(target / "decoder.onnx", load_external_data=False)
    ours = (node.op_type for node in model.graph.node if node.domain == DOMAIN)
    expected = Counter(op for op in ours if OPERATORS[op].gpu)
    assert entry.decoder.plugins == expected
    assert entry.decoder.plugins["BeamTopK"] == 1
    assert entry.encoder.plugins == {}
    assert "candidates" in entry.decoder.on_host
    assert entry.capabilities == tuple(CAPABILITIES) or CAPABILITIES == ["current"]


def as_bundle(source: Path, target: Path, precision: str = "fp32") -> Path:
    """A bundle of the graphs for TensorRT, with functions in place of plugins."""
    bundle = Bundle.load(source)
    shutil.copytree(source, target)
    graphs = write_tensorrt_graphs(bundle, engine_limits(bundle.manifest), precision, target)
    for part in ("encoder", "decoder"):
        model = onnx.load(target / f"{part}.onnx", load_external_data=False)
        assert not model.functions and all(node.domain == "" for node in model.graph.node)
        from_plugin_nodes(model)
        onnx.save(model, target / f"{part}.onnx")
    changed = {
        "prompt": None,
        "prefill": None,
        **graph_entries(graphs, target),
        "weights": file_entry(target, WEIGHTS),
        "cache_states": state_entries(graphs),
    }
    manifest = bundle.manifest.model_copy(update=changed)
    (target / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
    return target


def check_tokens_of_tensorrt_graphs(
    bundles: BundleCache, family: str, variant: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of the graphs for TensorRT, through function bodies, are those of the bundle."""
    source = bundles(variant, family)
    whole = Runner.load(source, threads=1)
    monkeypatch.setenv("TIGHTBEAM_LIBRARY", "none")
    given = Runner.load(as_bundle(source, folder / "given"), threads=1)
    ids, mask = batch(whole.manifest.sizes.source_vocabulary, 3)
    for settings in ({"num_beams": 1}, {"num_beams": 4, "no_repeat_ngram_size": 2}):
        expected = whole.generate(ids, mask, max_new_tokens=18, **settings)
        found = given.generate(ids, mask, max_new_tokens=18, **settings)
        np.testing.assert_array_equal(found.sequences, expected.sequences)
        if expected.scores is not None:
            assert found.scores is not None
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-4)
