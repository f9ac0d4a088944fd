"""Products of float32 with matrices in tiles: every one of a model, the same numbers, each matrix once, and back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from support.bundles.cache import BundleCache
from support.passes.runs import encoder_run
from support.tolerance import error
from tightbeam.export.writing.graphs import weight_bytes
from tightbeam.graph_passes import PRESETS, ModelGraphs, rewrite, same_for_all, to_precision
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.linear import linear
from tightbeam.graph_passes.tensorrt.standard_operators import standard_operators

FAMILIES = ["bart", "t5", "whisper", "gpt2", "llama"]


def variant(bundles: BundleCache, family: str, preset: str = "dedup") -> ModelGraphs:
    canonical = bundles.trace(family)[1]
    return rewrite(canonical, same_for_all(PRESETS[preset], canonical.sizes.L, ""))[0]


def operators(graph: gs.Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes)


def counted(graphs: ModelGraphs, folder: Path) -> dict[str, Array]:
    """The encoder's outputs on random sources, where the mask of positions has none that do not count."""
    return encoder_run(graphs, folder, (11, 11, 11))[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_product_with_a_matrix_stays(bundles: BundleCache, family: str, tmp_path: Path) -> None:
    before = variant(bundles, family)
    after, _ = to_precision(before, "fp32")
    for graph in (after.encoder, after.decoder):
        for node in graph.nodes:
            if node.op in ("MatMul", "Gemm"):
                assert not isinstance(node.inputs[1], gs.Constant), node.name
    names = ("before", "after")
    expected, found = (counted(graphs, tmp_path / n) for n, graphs in zip(names, (before, after), strict=True))
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert error(found[name], array) < 2e-6 * np.abs(array).max(), name


@pytest.mark.parametrize("family", FAMILIES)
def test_each_matrix_is_written_once(bundles: BundleCache, family: str) -> None:
    """Tiles take no more room than the matrices did, but for columns that fill the last one."""
    before = variant(bundles, family)
    after, _ = to_precision(before, "fp32")
    filled = sum(tensor.values[0].nbytes for tensor in _tiles(after))
    assert weight_bytes(after) <= weight_bytes(before) + filled


def _tiles(graphs: ModelGraphs) -> list[gs.Constant]:
    return [
        tensor
        for graph in (graphs.encoder, graphs.decoder)
        for tensor in graph.tensors().values()
        if isinstance(tensor, gs.Constant) and tensor.name.endswith(".tiles")
    ]


@pytest.mark.parametrize("family", ["bart", "gpt2"])
def test_an_embedding_that_gives_the_logits_is_read_in_tiles(bundles: BundleCache, family: str) -> None:
    graphs = variant(bundles, family)
    linear(graphs)
    gathers = [node for graph in (graphs.encoder, graphs.decoder) for node in graph.nodes if node.op == "TiledGather"]
    (logits,) = [
        node
        for node in graphs.decoder.nodes
        if node.op == "Linear" and len(node.inputs[2].values) == graphs.sizes.vocabulary
    ]
    assert len(gathers) == 2
    for gather in gathers:
        np.testing.assert_array_equal(gather.inputs[1].values, logits.inputs[1].values)
    kept = [node for node in graphs.decoder.nodes if node.op == "Gather" and isinstance(node.inputs[0], gs.Constant)]
    assert all(node.inputs[0].shape[0] != graphs.sizes.vocabulary for node in kept)


@pytest.mark.parametrize("family", FAMILIES)
def test_standard_operators_are_the_inverse(bundles: BundleCache, family: str, tmp_path: Path) -> None:
    before = variant(bundles, family)
    after = before.copy()
    linear(after)
    assert standard_operators(after).matched > 0
    for graph, old in ((after.encoder, before.encoder), (after.decoder, before.decoder)):
        ops, earlier = operators(graph), operators(old)
        assert not {"Linear", "TiledGather"} & ops.keys()
        assert ops["Gemm"] + ops["MatMul"] == earlier["Gemm"] + earlier["MatMul"]
        for op in ("LayerNormalization", "RMSNormalization", "Gather"):
            assert ops[op] == earlier[op], op
    assert weight_bytes(after) <= weight_bytes(before) * 1.01
    expected, found = (counted(g, tmp_path / n) for n, g in (("before", before), ("after", after)))
    for name, array in expected.items():
        assert error(found[name], array) < 2e-6 * np.abs(array).max(), name
    assert standard_operators(after).matched == 0


def test_a_matrix_that_is_not_finite_stays_as_it_is(bundles: BundleCache) -> None:
    graphs = variant(bundles, "bart")
    product = next(
        node
        for node in graphs.decoder.nodes
        if node.op in ("MatMul", "Gemm") and isinstance(node.inputs[1], gs.Constant)
    )
    spoiled = product.inputs[1].values.copy()
    spoiled[0, 0] = np.inf
    product.inputs[1] = gs.Constant("spoiled", spoiled)
    linear(graphs)
    assert [node.op for node in graphs.decoder.nodes if "spoiled" in {t.name for t in node.inputs}] == [product.op]
