"""Tables in int8: kernels of convolutions and whole positions are stored in 8 bits, and computed in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from support.passes.runs import sessions
from tightbeam.export.accuracy.product_guard import forms_of, measure_products, rounded_matrices
from tightbeam.graph_passes import ModelGraphs, Sizes, to_precision
from tightbeam.graph_passes.precision.integers import quantized_columns
from tightbeam.graph_passes.precision.sites import Site, sites

D, C, N = 32, 16, 40
SIZES = Sizes(D=D, H=1, G=1, K=D, V=D, L=1, vocabulary=9, source_vocabulary=9, max_source=N, max_target=8)


def constant(name: str, *shape: int) -> gs.Constant:
    return gs.Constant(name, np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32))


def table_graphs(kernel: gs.Constant) -> ModelGraphs:
    """x - Conv - Transpose - Add(positions by numbers) - Add(positions) -> y; the decoder has nothing of the kind."""
    x, y = gs.Variable("x", np.float32, ["B", C, N]), gs.Variable("y", np.float32, ["B", N, D])
    features, rows, added, taken = (gs.Variable(name) for name in ("features", "rows", "added", "taken"))
    numbers = gs.Constant("numbers", np.arange(N))
    nodes = [
        gs.Node("Conv", "kernel", {"pads": [1, 1]}, [x, kernel], [features]),
        gs.Node("Transpose", "turn", {"perm": [0, 2, 1]}, [features], [rows]),
        gs.Node("Gather", "take", {"axis": 0}, [constant("table", N, D), numbers], [taken]),
        gs.Node("Add", "first", {}, [rows, taken], [added]),
        gs.Node("Add", "second", {}, [added, constant("positions", 1, N, D)], [y]),
    ]
    z, e = gs.Variable("z", np.float32, ["B"]), gs.Variable("e", np.float32, ["B"])
    decoder = gs.Graph([gs.Node("Identity", "none", {}, [z], [e])], [z], [e], opset=23)
    return ModelGraphs(gs.Graph(nodes, [x], [y], opset=23), decoder, SIZES)


def rounded(site: Site) -> Any:
    integers, scale = quantized_columns(site.values)
    return (integers * scale).T


def test_tables_are_stored_in_integers(tmp_path: Path) -> None:
    """The graph computes what it did, with the rounded numbers; the guard's error is that of the rows."""
    graphs = table_graphs(constant("W", D, C, 3))
    found = sites(graphs)
    assert [(site.name, site.shape) for site in found] == [
        ("encoder.kernel", (3 * C, D)),
        ("encoder.take", (D, N)),
        ("encoder.second", (D, N)),
    ]
    matrices = rounded_matrices(found, {}, in_int4=True)
    assert not matrices.int8 and not matrices.int4
    entries = measure_products(found, {})
    for site, entry in zip(found, entries, strict=True):
        exact = site.values.T.astype(np.float64)
        ratio = np.square(rounded(site) - exact).mean(axis=1) / np.square(exact).mean(axis=1)
        assert entry.kept == "int8" and entry.int8 == pytest.approx(np.sqrt(ratio.mean()), rel=1e-6)

    wanted = table_graphs(gs.Constant("W", rounded(found[0]).reshape(D, C, 3)))
    for place, site in ((2, found[1]), (4, found[2])):
        node = wanted.encoder.nodes[place]
        index = next(index for index, given in enumerate(node.inputs) if isinstance(given, gs.Constant))
        node.inputs[index].values = rounded(site).reshape(node.inputs[index].shape)
    x = np.random.default_rng(0).standard_normal((2, C, N)).astype(np.float32)
    quantized, results = to_precision(graphs, "int8", forms_of(entries))
    floats = [node.inputs[0].values.dtype for node in quantized.encoder.nodes if node.op == "DequantizeLinear"]
    assert floats == [np.uint8] * 3
    (tmp_path / "low").mkdir()
    (tmp_path / "exact").mkdir()
    outputs = [
        sessions(each, tmp_path / name)[0].run(None, {"x": x})[0]
        for each, name in ((quantized, "low"), (wanted, "exact"))
    ]
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-5)
    assert next(result for result in results if result.name == "quantize").matched == 3


def test_tables_that_do_not_pay_stay_float32() -> None:
    """A depthwise convolution, whose scales would be as large as its numbers; NaN; what a form keeps."""
    narrow, damaged = constant("W", D, 1, 3), constant("W", D, C, 3)
    damaged.values[0, 0, 0] = np.nan
    for kernel in (narrow, damaged):
        assert [site.name for site in sites(table_graphs(kernel))] == ["encoder.take", "encoder.second"]
    graphs = table_graphs(constant("W", D, C, 3))
    quantized, _ = to_precision(graphs, "int8", dict.fromkeys([site.name for site in sites(graphs)], "fp32"))
    assert not [node for node in quantized.encoder.nodes if node.op == "DequantizeLinear"]
