"""One operator for the product of the logits in int8 and their search: which heads get it, and what a graph then has.

That it changes no search's result is in test_screen_head.py, beside screened logits, which keep the two operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import pytest

from support.passes.heads import demo_graphs, head_of, in_integers
from tightbeam.graph_passes import ModelGraphs, to_precision
from tightbeam.graph_passes.precision.screen_head import ALL_LOGITS, head_site
from tightbeam.graph_passes.precision.search_logits import search_logits


@pytest.fixture(scope="module")
def graphs() -> ModelGraphs:
    return demo_graphs()


@pytest.mark.parametrize("form", ["int8", "w8a16"])
def test_a_head_in_int8_and_its_search_are_one_operator(graphs: ModelGraphs, form: str) -> None:
    made, results = to_precision(graphs, "int8", {head_site(graphs).name: form})
    assert results[-1].matched == 1
    (node,) = (node for node in made.decoder.nodes if "TopK" in node.op)
    assert node.op == "QuantizedBeamTopK" and node.attrs == ({"split": 1} if form == "w8a16" else {})
    assert [tensor.name for tensor in made.decoder.inputs].count(ALL_LOGITS) == 1
    before = [(tensor.name, tensor.dtype, tensor.shape) for tensor in graphs.decoder.outputs]
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in made.decoder.outputs] == before


def test_known_tokens_still_get_whole_rows_of_logits(graphs: ModelGraphs) -> None:
    prefill = to_precision(graphs, "int8")[0].prefill
    assert prefill is not None
    names = [tensor.name for tensor in prefill.inputs], [tensor.name for tensor in prefill.outputs]
    assert "logits" in names[1] and ALL_LOGITS not in names[0]
    assert not any("TopK" in node.op for node in prefill.nodes)


def blocks(graphs: ModelGraphs) -> None:
    head_of(graphs).inputs[2] = gs.Constant("blocks", np.repeat(head_of(graphs).inputs[2].values, 2, axis=0))


def active(graphs: ModelGraphs) -> None:
    head_of(graphs).attrs["activation"] = 1


def added(graphs: ModelGraphs) -> None:
    head_of(graphs).inputs[4] = gs.Constant("added", np.ones((1, 1), np.float32))


def read_elsewhere(graphs: ModelGraphs) -> None:
    copy: Any = gs.Variable("copy", np.float32)
    graphs.decoder.layer(op="Identity", inputs=[head_of(graphs).outputs[0]], outputs=[copy])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (blocks, "the head has several scales in a column"),
        (active, "the logits have an activation"),
        (added, "a tensor is added to the logits"),
        (read_elsewhere, "another node reads the logits"),
    ],
)
def test_another_head_keeps_two_operators(
    graphs: ModelGraphs, change: Callable[[ModelGraphs], None], reason: str
) -> None:
    made = in_integers(graphs)
    change(made)
    result = search_logits(made)
    assert (result.matched, result.reason) == (0, reason)
    assert head_of(made).op == "DynamicQuantizeMatMul"


def test_a_head_in_float32_keeps_two_operators(graphs: ModelGraphs) -> None:
    made, results = to_precision(graphs, "int8", {head_site(graphs).name: "fp32"})
    assert (results[-1].name, results[-1].matched) == ("search_logits", 0)
    assert head_of(made).op == "Linear"
