"""Bundles in int4: refused with figures if the model does not bear it; tokens are the same in any company."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from support.checkpoints.families import CheckpointCache
from support.references.generate_runs import batch
from support.searches.batch_independence import LENGTHS
from tightbeam.deploy import Bundle, Runner
from tightbeam.export import ExportError, export_model
from tightbeam.export.options import MAX_DIVERGENCE_INT4, ExportOptions
from tightbeam.export.tensorrt.build import build_engine
from tightbeam.export.tensorrt.options import EngineOptions

WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 1}
"""Sizes whose products have rows of a multiple of 32 numbers."""
LOOSE: dict[str, Any] = {"precision": "int4", "max_divergence": 10.0}


@pytest.fixture(scope="module")
def bundle(checkpoints: CheckpointCache, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A model of random weights, which bears 4 bits with a limit of its own."""
    target = tmp_path_factory.mktemp("int4") / "bundle"
    return Bundle.load(export_model(checkpoints("llama", **WIDE), target, **LOOSE).path)


def test_products_and_embeddings_have_4_bits(bundle: Bundle) -> None:
    manifest = bundle.manifest
    (measured,), entries = manifest.divergences, manifest.quantized
    assert all(entry.kept == "w4a16" and 0 < (entry.w4a16 or 0) <= entry.allowed for entry in entries)
    assert measured.w4a16 == len(entries) >= 8 and manifest.precision == "int4"
    numbers = (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 96) + 101 * 64  # the logits' matrix is the embedding
    whole = sum(math.prod(entry.shape) for entry in entries)  # graphs of the tests' cache of traces share no memory
    assert numbers * 17 // 32 <= measured.bytes < whole * 17 // 32
    for name in ("encoder", "decoder"):
        graph = onnx.load(bundle.path / f"{name}.onnx", load_external_data=False).graph
        kinds = [node.op_type for node in graph.node]
        assert kinds.count("Int4MatMul") > 1 and kinds.count("Int4Gather") == 1
        assert not {"QuantizedMatMul", "DynamicQuantizeMatMul", "SplitRowsMatMul", "Linear"} & {*kinds}
    assert manifest.precision_error is not None and 0 < manifest.precision_error.error < 1


def test_samples_do_not_depend_on_their_batch(bundle: Bundle) -> None:
    runner = Runner.load(bundle.path, threads=1)
    ids, mask = batch(runner.manifest.sizes.source_vocabulary, 3, LENGTHS)
    settings: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 12}
    together = runner.generate(ids, mask, **settings).sequences[:, ids.shape[1] :]
    for sample, length in enumerate(LENGTHS):
        own = slice(sample, sample + 1), slice(length)
        alone = runner.generate(ids[own], mask[own], **settings).sequences[0, length:]
        np.testing.assert_array_equal(alone, together[sample, : len(alone)])


def test_a_model_that_does_not_bear_it_is_refused_with_figures(checkpoints: CheckpointCache, tmp_path: Path) -> None:
    shown: list[Any] = []
    said = (
        r"^int4 does not hold: within a divergence of 1e-07 nats a token, \d+% of the weights have 4 bits, expected "
        r"30% at least; with \d+ of \d+ products and embeddings in int4 the divergence is \S+; pass --calibration with "
        r"texts like yours, a larger --max-divergence, or --precision int8$"
    )
    with pytest.raises(ExportError, match=said):
        options: dict[str, Any] = {**LOOSE, "max_divergence": 1e-7, "check": False, "on_table": shown.append}
        export_model(checkpoints("llama", **WIDE), tmp_path / "bundle", **options)
    assert len(shown) == 2 and not (tmp_path / "bundle").exists()


def test_only_cpus_run_it(bundle: Bundle) -> None:
    with pytest.raises(ExportError, match=r"is in int4, which is for ONNX Runtime"):
        build_engine(bundle.path, EngineOptions(capabilities=["80"]))


def test_its_budget_is_its_own() -> None:
    assert ExportOptions(precision="int4").cache_budget == MAX_DIVERGENCE_INT4
    assert ExportOptions(precision="int8").cache_budget < MAX_DIVERGENCE_INT4
    assert np.expm1(MAX_DIVERGENCE_INT4) < 0.03
    assert ExportOptions(precision="int4", max_divergence=0.5).cache_budget == 0.5
