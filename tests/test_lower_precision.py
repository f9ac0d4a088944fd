"""Graphs in float16 and bfloat16: every type where it should be, and an error no larger than torch's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
import torch

from bundles import BundleCache
from precision_runs import logits_of, source_run, torch_logits
from tightbeam.deploy.bundle import WEIGHTS, Bundle
from tightbeam.export.graph_files import write_graphs
from tightbeam.graph_passes import (
    PRESETS,
    CacheState,
    ModelGraphs,
    PassError,
    passes_of,
    rewrite,
    same_for_all,
    search_head,
)
from tightbeam.graph_passes.base import graph_input
from tightbeam.graph_passes.lower_precision import ATTENTION_MASK, NORMS, PRODUCTS, lower_precision
from tightbeam.graph_passes.simulate_precision import simulate_precision
from tightbeam.plugins import DOMAIN, OPERATORS
from tightbeam.plugins.library import tensorrt_library
from tightbeam.plugins.tensorrt.native import tables
from tolerance import TIMES, assert_runs_close, error

Array = Any
PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16}
LOW = {"fp16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16}
NAMES = {"fp16": "F16", "bf16": "BF16"}
FLOAT = onnx.TensorProto.FLOAT
ENCODER_DECODER, CAUSAL = ("dedup", "el", "kcache", "slim", "baseline"), ("dedup", "baseline")
CASES = [
    *((family, variant) for family in ("bart", "t5", "whisper") for variant in ENCODER_DECODER),
    *((family, variant) for family in ("marian", "prophetnet") for variant in ("dedup", "slim", "baseline")),
    *(("gpt2", variant) for variant in ("dedup", "el", "kcache", "xcache", "baseline")),
    *((family, variant) for family in ("llama", "qwen3") for variant in CAUSAL),
]


@pytest.mark.skipif(tensorrt_library() is None, reason="the library of the tables was not built: no C++ compiler")
def test_the_float32_tensors_of_operators_are_those_of_their_tables() -> None:
    for name, table in tables().items():
        entries = (*table.inputs, *table.outputs)
        assert OPERATORS[name].float32 == {entry.name for entry in entries if entry.type == "float32"}


def lowered(bundles: BundleCache, family: str, variant: str, precision: str) -> ModelGraphs:
    canonical = bundles.trace(family)[1]
    graphs, _ = rewrite(canonical, same_for_all(PRESETS[variant], canonical.sizes.L, ""))
    lower_precision(graphs, precision)
    return graphs


def models(graphs: ModelGraphs, folder: Path) -> dict[str, onnx.ModelProto]:
    """As they are written, with the types that strict inference finds; checked."""
    write_graphs(graphs, folder)
    found = {}
    for name in ("encoder", "decoder"):
        onnx.checker.check_model(str(folder / f"{name}.onnx"))
        plain = onnx.load(folder / f"{name}.onnx", load_external_data=False)
        found[name] = onnx.shape_inference.infer_shapes(plain, check_type=True, strict_mode=True)
    return found


def types_of(graph: onnx.GraphProto) -> dict[str, int]:
    values = (*graph.input, *graph.output, *graph.value_info)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return {**types, **{constant.name: constant.data_type for constant in graph.initializer}}


def typed_inputs(node: onnx.NodeProto, types: dict[str, int]) -> Iterator[tuple[str, int]]:
    """The float inputs, each with its slot's name for our operators, or its number."""
    names = OPERATORS[node.op_type].inputs if node.domain == DOMAIN else map(str, range(len(node.input)))
    for name, tensor in zip(names, node.input, strict=False):
        if tensor and types[tensor] in (FLOAT, *LOW.values()):
            yield name, types[tensor]


def assert_typed(graph: onnx.GraphProto, low: int) -> None:
    """No node mixes types, and each has that which it should."""
    types = types_of(graph)
    assert {types[name] for node in graph.node for name in node.output if name} & set(LOW.values()) == {low}
    casts = [(node.input[0], node.attribute[0].i) for node in graph.node if node.op_type == "Cast"]
    assert len(casts) == len(set(casts))
    constants = {constant.name for constant in graph.initializer}
    for node in graph.node:
        given = dict(typed_inputs(node, types))
        if node.domain == DOMAIN:
            float32 = OPERATORS[node.op_type].float32
            assert given == {name: FLOAT if name in float32 else low for name in given}
        elif node.op_type in PRODUCTS:
            given.pop(str(ATTENTION_MASK), None) if node.op_type == "Attention" else None
            assert set(given.values()) == {low}
            softmax = [entry.i for entry in node.attribute if entry.name == "softmax_precision"]
            assert softmax == ([FLOAT] if node.op_type == "Attention" else [])
        elif node.op_type == "Cast":
            assert not set(node.input) & constants or types[node.input[0]] != FLOAT
        elif node.op_type in NORMS | {"RotaryEmbedding", "Pow", "Cos", "Sin"}:
            assert set(given.values()) == {FLOAT}
            assert types[node.output[0]] == FLOAT
        else:
            assert len(set(given.values())) <= 1


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("family", "variant"), CASES)
def test_types(bundles: BundleCache, tmp_path: Path, family: str, variant: str, precision: str) -> None:
    graphs = lowered(bundles, family, variant, precision)
    found = models(graphs, tmp_path)
    low = LOW[precision]
    for model in found.values():
        assert_typed(model.graph, low)
    encoder, decoder = found["encoder"].graph, found["decoder"].graph
    inputs = {value.name: value.type.tensor_type.elem_type for value in decoder.input}
    outputs = {value.name: value.type.tensor_type.elem_type for value in decoder.output}
    assert low not in {value.type.tensor_type.elem_type for value in encoder.input}
    for value in encoder.output:
        assert value.type.tensor_type.elem_type == inputs[value.name] == low
    for state in graphs.states:
        assert inputs[state.input] == outputs[state.output] == low
    assert inputs["beam_scores"] == inputs["repetition_penalty"] == outputs["candidate_scores"] == FLOAT
    embeddings = [node.input[0] for node in decoder.node if node.op_type == "Gather"]
    assert embeddings and any(types_of(decoder)[name] == low for name in embeddings)
    with (tmp_path / WEIGHTS).open("rb") as stream:
        entries = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    matrices = {entry["dtype"] for entry in entries.values() if len(entry["shape"]) > 1 and min(entry["shape"]) > 8}
    assert matrices == {NAMES[precision]}


def without_head(canonical: ModelGraphs, variant: str) -> ModelGraphs:
    """A variant that gives logits."""
    graphs = canonical.copy()
    plan = same_for_all(PRESETS[variant], canonical.sizes.L, "")
    for apply in passes_of(plan, decoder_only=canonical.sizes.decoder_only):
        if apply is not search_head:
            apply(graphs)
    return graphs


Known = Callable[[str], tuple[dict[str, Any], dict[torch.dtype, Array]]]


@pytest.fixture(scope="module")
def known(bundles: BundleCache, tmp_path_factory: pytest.TempPathFactory) -> Known:
    """By family: a run, and torch's logits of it in every precision."""
    made: dict[str, Any] = {}

    def get(family: str) -> tuple[dict[str, Any], dict[torch.dtype, Array]]:
        if family not in made:
            model = bundles.trace(family)[0].model
            run = source_run(model, tmp_path_factory.mktemp(family))
            made[family] = (
                run,
                {dtype: torch_logits(model, run, dtype) for dtype in (torch.float64, *PRECISIONS.values())},
            )
        return made[family]

    return get


def assert_rows_close(found: Array, exact: Array, naive: Array) -> None:
    """Logits [T, R, vocabulary]. One wrong step spreads over a row, so that rows are the runs to be compared."""
    assert_runs_close([(found[:, row], exact[:, row], naive[:, row]) for row in range(found.shape[1])])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("family", "variant"), CASES)
def test_the_error_is_that_of_torch_in_that_precision(
    bundles: BundleCache, known: Known, family: str, variant: str, precision: str
) -> None:
    run, logits = known(family)
    exact, naive = logits[torch.float64], logits[PRECISIONS[precision]]
    graphs = without_head(bundles.trace(family)[1], variant)
    full = logits_of(graphs, run)
    lower_precision(graphs, precision)
    simulated = graphs.copy()
    assert simulate_precision(simulated).matched > 0
    for name in ("encoder", "decoder"):
        pairs = zip(getattr(graphs, name).inputs, getattr(simulated, name).inputs, strict=True)
        assert all(
            before.name == after.name and np.dtype(after.dtype) not in ("float16", "bfloat16")
            for before, after in pairs
        )
    found = logits_of(simulated, run)
    assert_rows_close(found, exact, naive)
    epsilon = torch.finfo(PRECISIONS[precision]).eps
    assert error(found, exact) > epsilon / 8 * exact.std() > 8 * error(full, exact)
    if precision == "fp16":
        assert_rows_close(logits_of(graphs, run), exact, naive)  # ONNX Runtime casts around what it has no kernel for


def test_the_rounding_is_that_of_the_type(tmp_path: Path) -> None:
    graphs = small_graphs()
    lower_precision(graphs, "bf16")
    simulate_precision(graphs)
