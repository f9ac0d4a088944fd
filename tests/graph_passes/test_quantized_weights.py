"""Matrices in integers: in blocks of columns, and made once for several copies of a model's graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from tightbeam.graph_passes import ModelGraphs, Sizes, to_precision
from tightbeam.graph_passes.precision.integers import Made, ggml_matrices, quantized_columns
from tightbeam.graph_passes.precision.quantize import with_short_rows
from tightbeam.graph_passes.precision.sites import Site, sites
from tightbeam.plugins.ops.quantized_matmul.layout import COLUMNS_AT_ONCE, tiled, untiled

D, WIDE = 32, 2 * COLUMNS_AT_ONCE + 37
SIZES = Sizes(D=D, H=1, G=1, K=D, V=D, L=1, vocabulary=9, source_vocabulary=9, max_source=9, max_target=8)


def matrix(Y: int, order: str) -> Any:
    numbers = np.random.default_rng(Y).standard_normal((D, Y)).astype(np.float32) * np.linspace(0.1, 9, Y)
    numbers[:, Y // 2] = 0
    return np.asarray(numbers, np.float32, order=order)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("Y", [1, 16, COLUMNS_AT_ONCE, WIDE])
def test_columns_are_quantised_each_for_itself(Y: int, order: str) -> None:
    numbers = matrix(Y, order)
    integers, scale = quantized_columns(numbers)
    assert integers.dtype == np.int8
    assert (scale.dtype, scale.shape) == (np.float32, (1, Y))
    for y in range(Y):
        largest = np.abs(numbers[:, y]).max()
        step = np.float32(largest or 1) / np.float32(127)
        assert scale[0, y] == step
        np.testing.assert_array_equal(integers[:, y], np.rint(numbers[:, y] / step))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("Y", [1, 16, COLUMNS_AT_ONCE, WIDE])
def test_tiles_are_columns_beside_one_another(Y: int, order: str) -> None:
    integers, _ = quantized_columns(matrix(Y, order))
    tiles = tiled(integers)
    assert tiles.shape == (-(-Y // 16), D // 4, 16, 4)
    for y in range(Y):
        np.testing.assert_array_equal(tiles[y // 16, :, y % 16].reshape(-1), integers[:, y].astype(int) + 128)
    assert (tiles[-1].transpose(1, 0, 2)[(Y - 1) % 16 + 1 :] == 128).all(), "expected zero weights in the last tile"
    np.testing.assert_array_equal(untiled(tiles, Y), integers)


def graphs_of(weights: Any) -> ModelGraphs:
    """x - MatMul -> y in the encoder; the decoder has no product."""
    x, y = gs.Variable("x", np.float32, ["B", D]), gs.Variable("y", np.float32, ["B", weights.shape[1]])
    encoder = gs.Graph([gs.Node("MatMul", "product", {}, [x, gs.Constant("W", weights)], [y])], [x], [y], opset=23)
    z, e = gs.Variable("z", np.float32, ["B"]), gs.Variable("e", np.float32, ["B"])
    return ModelGraphs(encoder, gs.Graph([gs.Node("Identity", "none", {}, [z], [e])], [z], [e], opset=23), SIZES)


def arrays(graphs: ModelGraphs) -> list[Any]:
    (product,) = (node for node in graphs.encoder.nodes if node.op.endswith("MatMul"))
    return [tensor.values for tensor in product.inputs[1:3]]  # tiles and scale


@pytest.mark.parametrize("read", [False, True])
def test_copies_of_the_graphs_share_what_was_quantised(read: bool) -> None:
    """A graph read from a message loads its constants when they are first asked for."""
    graphs, made = graphs_of(matrix(WIDE, "C")), Made()
    if read:
        graphs = replace(graphs, encoder=gs.import_onnx(gs.export_onnx(graphs.encoder)))
    alone, said = to_precision(graphs, "int8")
    first, _ = to_precision(graphs, "int8", made=made)
    assert len(made) == 1
    wide, _ = to_precision(graphs, "int8", {"encoder.product": "w8a16"}, made=made)
    again, said_again = to_precision(graphs, "int8", made=made)
    assert len(made) == 1
    for own, one, other, last in zip(arrays(alone), arrays(first), arrays(wide), arrays(again), strict=True):
        np.testing.assert_array_equal(own, one)
        assert np.shares_memory(one, other) and np.shares_memory(one, last)
        assert not np.shares_memory(one, own)
    assert [result.bytes_saved(None) for result in said] == [result.bytes_saved(None) for result in said_again]


def test_rows_of_16_bits_become_rows_of_8_without_another_pass() -> None:
    """The same operators over the same arrays as a pass over float32 graphs makes."""
    graphs, made = graphs_of(matrix(WIDE, "C")), Made()
    found = sites(graphs)
    wide, _ = to_precision(graphs, "int8", {"encoder.product": "w8a16"}, made=made)
    expected, _ = to_precision(graphs, "int8", made=made)
    for names, model in (((), wide), (("encoder.product",), expected)):
        short = with_short_rows(wide, names, found, made)
        assert [node.op for node in short.encoder.nodes] == [node.op for node in model.encoder.nodes]
        for one, other in zip(arrays(short), arrays(model), strict=True):
            assert one is other


@pytest.mark.parametrize(("in_4_bits", "most", "error"), [(False, 127, 0.006), (True, 8, 0.11)])
def test_llama_cpps_forms_have_a_scale_for_32_numbers(in_4_bits: bool, most: int, error: float) -> None:
    numbers = np.random.default_rng(3).standard_normal((64, 50)).astype(np.float32)
    numbers[:32] *= 100
    numbers[:32, 7] = 0
    table = gs.Constant("E", np.ascontiguousarray(numbers.T))
    found = ggml_matrices(
        [
            Site("product", gs.Node("MatMul"), gs.Constant("W", numbers), False, gs.Variable("x")),
            Site("embedding", gs.Node("Gather"), table, True, None),
            Site("logits", gs.Node("Gemm"), table, True, gs.Variable("y")),
            Site("narrow", gs.Node("MatMul"), gs.Constant("V", numbers[:20]), False, gs.Variable("z")),
        ],
        in_4_bits=in_4_bits,
    )
    assert found.keys() == {"product", "embedding", "logits"} and found["embedding"] is found["logits"]
    rounded = found["product"]
    assert rounded.scale.shape == (2, 50) and np.array_equal(rounded.scale, rounded.scale.astype(np.float16))
    assert np.abs(rounded.integers).max() == most and not rounded.values[:32, 7].any()
    for half in (numbers[:32], rounded.values[:32]), (numbers[32:], rounded.values[32:]):
        assert 0.5 * error < np.linalg.norm(half[0] - half[1]) / np.linalg.norm(half[0]) < error
    assert np.abs(found["logits"].integers).max() == 127  # embeddings have more bits
