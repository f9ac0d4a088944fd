"""Scales moved from rows into matrices: the same float32 outputs to the bit, and nothing moved for one reader alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from support.bundles.cache import BundleCache
from tightbeam.export.accuracy.calibration import calibration_samples
from tightbeam.export.accuracy.calibration_run import CalibrationRun
from tightbeam.export.writing.graphs import weight_bytes, write_graphs
from tightbeam.graph_passes import PRESETS, ModelGraphs, PassError, rewrite, same_for_all
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.move_scales import move_scales
from tightbeam.graph_passes.precision.scale_groups import scale_groups
from tightbeam.graph_passes.precision.sites import sites

CASES = [
    ("bart", "dedup"),
    ("whisper", "dedup"),
    ("whisper", "el"),
    ("whisper", "baseline"),
    ("t5", "kcache"),
    ("llama", "dedup"),
    ("gpt2", "dedup"),
    ("marian", "xcache"),
]


def random_scales(graphs: ModelGraphs) -> dict[str, Array]:
    generator = np.random.default_rng(0)
    groups, _ = scale_groups(graphs)
    return {group.name: np.exp2(generator.integers(-4, 5, group.count)).astype(np.float32) for group in groups}


def variant(bundles: BundleCache, family: str, preset: str) -> ModelGraphs:
    canonical = bundles.trace(family)[1]
    return rewrite(canonical, same_for_all(PRESETS[preset], canonical.sizes.L, ""))[0]


@pytest.mark.parametrize(("family", "preset"), CASES)
def test_float32_outputs_stay_the_same_to_the_bit(
    bundles: BundleCache, tmp_path: Path, family: str, preset: str
) -> None:
    checkpoint = bundles.trace(family)[0]
    graphs = variant(bundles, family, preset)
    samples = calibration_samples(checkpoint, None)
    decoder_only = graphs.sizes.decoder_only
    run = CalibrationRun(samples, checkpoint.generation_config, tmp_path, decoder_only=decoder_only)
    expected = run(graphs)
    moved = graphs.copy()
    scales = random_scales(moved)
    before = {site.name: site.values.copy() for site in sites(graphs)}
    result = move_scales(moved, scales)
    assert result.matched == len(scales) > 0
    found = run(moved, expected.tokens)
    np.testing.assert_array_equal(found.log_probabilities, expected.log_probabilities)
    # The first graphs share their weights with the model, and none is edited in place.
    assert all(np.array_equal(site.values, before[site.name]) for site in sites(graphs))
    changed = [site for site in sites(moved) if not np.array_equal(site.values, before[site.name])]
    assert len(changed) >= len(scales)
    assert weight_bytes(moved) == weight_bytes(graphs)


def test_one_constant_is_scaled_in_several_ways(bundles: BundleCache, tmp_path: Path) -> None:
    """The norms of a fresh model are all ones, which a graph holds once; each gets scales of its own."""
    checkpoint = bundles.trace("m2m_100")[0]
    graphs = variant(bundles, "m2m_100", "dedup")
    for graph in (graphs.encoder, graphs.decoder):
        ones = gs.Constant("ones", np.ones(graphs.sizes.D, np.float32))
        for node in graph.nodes:
            if node.op == "LayerNormalization":
                node.inputs[1] = ones
    run = CalibrationRun(
        calibration_samples(checkpoint, None), checkpoint.generation_config, tmp_path, decoder_only=False
    )
    expected, moved = run(graphs), graphs.copy()
    assert move_scales(moved, random_scales(moved)).matched > 4
    found = run(moved, expected.tokens)
    np.testing.assert_array_equal(found.log_probabilities, expected.log_probabilities)


@pytest.mark.parametrize("family", ["llama", "whisper", "bart"])
def test_values_are_scaled_through_the_attention(bundles: BundleCache, family: str) -> None:
    """A group whose rows come from an attention divides the product in front of it, and its bias."""
    graphs = variant(bundles, family, "dedup")
    groups, _ = scale_groups(graphs)
    nodes = {f"{name}.{node.name}": node for name in ("encoder", "decoder") for node in getattr(graphs, name).nodes}
    through = [
        group
        for group in groups
        if any("Attention" in producer.op for producer in _makers(nodes[next(iter(group.rows))].inputs[0]))
    ]
    assert through
    for group in through:
        divided = [factor for factor in group.factors if factor.divided]
        assert divided and all(nodes[f"{factor.graph}.{factor.node}"].op != "LayerNormalization" for factor in divided)


def _makers(tensor: gs.Tensor) -> list[gs.Node]:
    """The node that makes a tensor, behind changes of layout."""
    while tensor.inputs and tensor.inputs[0].op in ("Reshape", "Transpose"):
        tensor = tensor.inputs[0].inputs[0]
    return list(tensor.inputs)


def test_a_matrix_that_an_embedding_shares_is_left_alone(bundles: BundleCache) -> None:
    graphs = variant(bundles, "bart", "dedup")
    (embedding,) = [site for site in sites(graphs) if site.name == "decoder.node_embedding"]
    readers = [site.name for site in sites(graphs) if site.matrix.values is embedding.matrix.values]
    assert len(readers) > 1
    groups, left = scale_groups(graphs)
    assert not {name for group in groups for name in group.rows} & set(readers)
    assert left["Gather reads a matrix that it shares"] == 1


def test_scales_that_are_not_powers_of_two_are_refused(bundles: BundleCache) -> None:
    graphs = variant(bundles, "bart", "dedup")
    scales = {name: scale * np.float32(1.5) for name, scale in random_scales(graphs).items()}
    with pytest.raises(PassError, match=r"^move_scales: the scales of \S+ are not all powers of two$"):
        move_scales(graphs, scales)


def test_two_constants_of_one_name_are_not_written(bundles: BundleCache, tmp_path: Path) -> None:
    graphs = variant(bundles, "bart", "dedup")
    first, second = [node for node in graphs.decoder.nodes if node.op == "LayerNormalization"][:2]
    for node, number in ((first, 1), (second, 2)):
        node.inputs[1] = gs.Constant("scale", np.full(graphs.sizes.D, number, np.float32))
    with pytest.raises(PassError, match=r"^two constants have the name scale; please report this with [^\n]+$"):
        write_graphs(graphs, tmp_path)
