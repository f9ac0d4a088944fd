"""Changes of layout that others undo or repeat: removed, with the same bits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from support.bundles.cache import BundleCache
from support.passes.runs import encoder_run
from tightbeam.graph_passes import PRESETS, ModelGraphs, rewrite, same_for_all
from tightbeam.graph_passes.cleanup.encoder_attention import encoder_attention
from tightbeam.graph_passes.cleanup.flat_rows import flat_rows
from tightbeam.graph_passes.precision.normalize_rows import normalize_rows
from tightbeam.graph_passes.precision.quantize import quantize
from tightbeam.graph_passes.precision.same_rows import same_rows


@pytest.mark.parametrize(
    ("family", "most"), [pytest.param("bart", 52, marks=pytest.mark.slow), ("t5", 42), ("whisper", 38), ("gpt2", 42)]
)
def test_the_same_bits_with_fewer_nodes(bundles: BundleCache, family: str, most: int, tmp_path: Path) -> None:
    shape = {"encoder_ffn_dim": 48} if family == "bart" else {}
    canonical = bundles.trace(family, **shape)[1]
    before, _ = rewrite(canonical, same_for_all(PRESETS["dedup"], canonical.sizes.L, ""))
    encoder_attention(before)
    quantize(before)
    normalize_rows(before)
    after = before.copy()
    result = flat_rows(after)
    counts = [sum(len(graph.nodes) for graph in (graphs.encoder, graphs.decoder)) for graphs in (before, after)]
    assert result.matched == counts[0] - counts[1] > 0
    ops = Counter(node.op for node in after.encoder.nodes)
    assert ops["Reshape"] + ops["Shape"] + ops["Concat"] <= most
    expected, found = (
        encoder_run(graphs, tmp_path / name, (11, 11, 11))[1] for name, graphs in (("before", before), ("after", after))
    )
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    assert flat_rows(after).matched == 0


def graph(*nodes: gs.Node, read: gs.Tensor) -> ModelGraphs:
    """Graphs of which the first has these nodes."""
    made = gs.Graph(nodes=list(nodes), inputs=[], outputs=[read], opset=23)
    return ModelGraphs(made, gs.Graph(), None)  # type: ignore[arg-type]


def test_a_matrix_of_another_width_is_reshaped_once() -> None:
    x, tall, rows, y = (gs.Variable(name, np.dtype(np.float32)) for name in ("x", "tall", "rows", "y"))
    x.shape = [6, 8]
    shapes = [gs.Constant(f"shape{n}", np.array(shape)) for n, shape in enumerate(([2, 3, 8], [-1, 4]))]
    graphs = graph(
        gs.Node("Reshape", inputs=[x, shapes[0]], outputs=[tall]),
        gs.Node("Reshape", inputs=[tall, shapes[1]], outputs=[rows]),
        gs.Node("Relu", inputs=[rows], outputs=[y]),
        read=y,
    )
    assert flat_rows(graphs).matched == 1
    reshape, relu = graphs.encoder.nodes
    assert (reshape.inputs[0], relu.inputs[0]) == (x, rows)


def test_an_output_of_the_graph_stays() -> None:
    x, y = (gs.Variable(name, np.dtype(np.float32), [2, 4]) for name in ("x", "y"))
    graphs = graph(gs.Node("Reshape", inputs=[x, gs.Constant("shape", np.array([-1, 4]))], outputs=[y]), read=y)
    assert flat_rows(graphs).matched == 0
    assert graphs.encoder.nodes[0].outputs == [y]


def test_rows_are_those_of_the_first_tensor() -> None:
    x, wide, normed, other, total, mixed = (
        gs.Variable(name) for name in ("x", "wide", "normed", "other", "sum", "mixed")
    )
    weight, bias = gs.Constant("weight", np.zeros((8, 8), np.float32)), gs.Constant("bias", np.zeros(8, np.float32))
    made = graph(
        gs.Node("MatMul", inputs=[x, weight], outputs=[wide]),
        gs.Node("LayerNormalization", inputs=[wide, bias, bias], outputs=[normed]),
        gs.Node("Add", inputs=[normed, wide], outputs=[total]),
        gs.Node("Add", inputs=[total, other], outputs=[mixed]),
        read=mixed,
    )
    assert same_rows(made.encoder) == {"wide": "x", "normed": "x", "sum": "x"}
