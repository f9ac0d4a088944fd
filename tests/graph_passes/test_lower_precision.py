"""Graphs in float16 and bfloat16: every type where it should be, and an error no larger than torch's own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
import torch

from support.bundles.cache import BundleCache
from support.passes.precision_runs import logits_of, source_run, torch_logits
from support.passes.runs import sessions
from support.slow_cases import slow_unless
from support.tolerance import assert_runs_close, error
from tightbeam.deploy.bundle.manifest import WEIGHTS
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.export.writing.graphs import read_graphs, write_graphs
from tightbeam.graph_passes import PRESETS, ModelGraphs, PassError, passes_of, rewrite, same_for_all
from tightbeam.graph_passes.builder import Builder, graph_input
from tightbeam.graph_passes.cleanup.search_head import search_head
from tightbeam.graph_passes.model import RunSize, Sizes
from tightbeam.graph_passes.precision.lower_precision import NORMS, PRODUCTS, lower_precision
from tightbeam.graph_passes.precision.simulate_precision import simulate_precision
from tightbeam.graph_passes.tensorrt.standard_operators import standard_operators
from tightbeam.plugins.ops import DOMAIN, OPERATORS

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


def lowered(bundles: BundleCache, family: str, variant: str, precision: str) -> ModelGraphs:
    canonical = bundles.trace(family)[1]
    graphs, _ = rewrite(canonical, same_for_all(PRESETS[variant], canonical.sizes.L, ""))
    lower_precision(graphs, precision)
    return graphs


def models(graphs: ModelGraphs, folder: Path) -> dict[str, onnx.ModelProto]:
    """Write the graphs, check them, and read them with the types that strict inference finds."""
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
    names = OPERATORS[node.op_type].input_names if node.domain == DOMAIN else map(str, range(len(node.input)))
    for name, tensor in zip(names, node.input, strict=False):
        if tensor and types[tensor] in (FLOAT, *LOW.values()):
            yield name, types[tensor]


def assert_typed(graph: onnx.GraphProto, low: int) -> None:
    """Assert that no node mixes types, and that each node has its expected type."""
    types = types_of(graph)
    assert {types[name] for node in graph.node for name in node.output if name} & set(LOW.values()) == {low}
    casts = [(node.input[0], node.attribute[0].i) for node in graph.node if node.op_type == "Cast"]
    assert len(casts) == len(set(casts))
    cast = {node.output[0] for node in graph.node if node.op_type == "Cast" and types[node.input[0]] == low}
    assert not any(node.op_type == "Shape" and node.input[0] in cast for node in graph.node)
    constants = {constant.name for constant in graph.initializer}
    for node in graph.node:
        given = dict(typed_inputs(node, types))
        if node.domain == DOMAIN:
            float32 = OPERATORS[node.op_type].float32
            assert given == {name: FLOAT if name in float32 else low for name in given}
        elif node.op_type in PRODUCTS:
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


@pytest.mark.parametrize(
    ("family", "variant", "precision"),
    slow_unless(
        [(*case, precision) for case in CASES for precision in PRECISIONS],
        lambda family, variant, precision: precision == "fp16" or (family, variant) == ("bart", "dedup"),
    ),
)
def test_types_of_all_tensors(bundles: BundleCache, tmp_path: Path, family: str, variant: str, precision: str) -> None:
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
        assert value.type.tensor_type.elem_type == low
        assert value.name == "alignment_keys" or inputs[value.name] == low
    for state in graphs.states:
        assert inputs[state.input] == outputs[state.output] == low
    assert inputs["beam_scores"] == inputs["repetition_penalty"] == outputs["candidate_scores"] == FLOAT
    embeddings = [node.input[0] for node in decoder.node if node.op_type == "Gather"]
    assert embeddings and any(types_of(decoder)[name] == low for name in embeddings)
    with (tmp_path / WEIGHTS).open("rb") as stream:
        entries = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    assert NAMES[precision] in {entry["dtype"] for entry in entries.values()}


def without_head(canonical: ModelGraphs, variant: str) -> ModelGraphs:
    """A variant that gives logits."""
    graphs = canonical.copy()
    plan = same_for_all(PRESETS[variant], canonical.sizes.L, "")
    for apply in passes_of(plan, one_softmax=canonical.sizes.one_softmax):
        if apply is not search_head:
            apply(graphs)
    return graphs


Known = Callable[[str], tuple[dict[str, Any], dict[torch.dtype, Array]]]


@pytest.fixture(scope="module")
def known(bundles: BundleCache, tmp_path_factory: pytest.TempPathFactory) -> Known:
    """Runs by family, and torch's logits of them in every precision."""
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


@pytest.mark.parametrize(
    ("family", "variant", "precision"),
    slow_unless(
        [(*case, precision) for case in CASES for precision in PRECISIONS],
        lambda *case: case in [(family, "dedup", "fp16") for family in ("bart", "t5", "gpt2", "llama")],
    ),
)
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


def small_graphs(sizes: Sizes, weight: Array | None = None) -> ModelGraphs:
    """An encoder of one product, and a decoder of one attention in steps, with a mask of float32's lowest number."""
    lowest = np.array(np.finfo(np.float32).min, np.float32)
    table = np.linspace(0.1, 1, 16, dtype=np.float32).reshape(4, 4) if weight is None else weight
    graphs = ModelGraphs(gs.Graph(), gs.Graph(), sizes)
    features = graph_input(graphs.encoder, "input_features", np.float32, ["B", 4])
    build = Builder(graphs.encoder, "encoder")
    kept = build.variable("kept", ["B", 4])
    graphs.encoder.outputs = [kept]
    build.add("MatMul", [features, gs.Constant("weight", table)], outputs=[kept])

    build = Builder(graphs.decoder, "decoder")
    source = graph_input(graphs.decoder, kept.name, np.float32, ["B", 4])
    mask = graph_input(graphs.decoder, "mask", np.bool_, ["B", 4])
    level = graph_input(graphs.decoder, "level", np.float32, [])
    query = build.add("MatMul", [source, gs.Constant("weight", table)])
    shared = gs.Constant("shared", np.full(4, 0.3, np.float32))
    bias = build.add("Where", [mask, shared, gs.Constant("lowest", lowest)])
    scores = build.add("Add", [build.add("Mul", [query, level]), bias])
    weights = build.add("Softmax", [scores], {"axis": -1})
    logits = build.variable("logits", ["B", 4])
    build.add("Add", [build.add("MatMul", [weights, gs.Constant("values", table.T.copy())]), shared], outputs=[logits])
    graphs.decoder.outputs = [logits]
    return graphs


@pytest.fixture
def sizes(bundles: BundleCache) -> Sizes:
    return bundles.trace("bart")[1].sizes


@pytest.mark.parametrize("precision", PRECISIONS)
def test_scores_and_their_mask_stay_float32(sizes: Sizes, tmp_path: Path, precision: str) -> None:
    graphs = small_graphs(sizes)
    shared = next(tensor for tensor in graphs.decoder.tensors().values() if tensor.name == "shared")
    before = shared.values.copy()
    lower_precision(graphs, precision)
    graph = models(graphs, tmp_path)["decoder"].graph
    types = types_of(graph)
    inputs = {node.op_type: [types[name] for name in node.input] for node in graph.node}
    assert (inputs["Softmax"], inputs["Mul"]) == ([FLOAT], [FLOAT, FLOAT])
    assert inputs["Where"] == [onnx.TensorProto.BOOL, FLOAT, FLOAT]
    assert inputs["MatMul"] == inputs["Add"] == [LOW[precision]] * 2  # the last ones
    assert (types["shared"], types[f"shared.{precision}"]) == (FLOAT, LOW[precision])
    assert types["level"] == FLOAT
    assert shared.values.dtype == np.float32
    np.testing.assert_array_equal(shared.values, before)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_simulation_rounds_to_the_nearest_and_computes_in_float32(
    sizes: Sizes, tmp_path: Path, precision: str
) -> None:
    graphs = small_graphs(sizes)
    assert simulate_precision(graphs.copy()).reason == "no tensor is float16 or bfloat16"
    weight = next(t for t in graphs.encoder.tensors().values() if t.name == "weight").values
    lower_precision(graphs, precision)
    simulate_precision(graphs)
    features = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    (found,) = sessions(graphs, tmp_path)[0].run(None, {"input_features": features})

    def rounded(values: Array) -> Array:
        return torch.tensor(values).to(PRECISIONS[precision]).float().numpy()

    exact = rounded(features).astype(np.float64) @ rounded(weight).astype(np.float64)
    np.testing.assert_array_equal(found, rounded(exact.astype(np.float32)))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_mask_hides_and_stays_finite(sizes: Sizes, tmp_path: Path, precision: str) -> None:
    """float32's lowest number would become -inf, and a fully masked row NaN."""
    graphs = ModelGraphs(gs.Graph(), small_graphs(sizes).decoder, sizes)
    rows = graph_input(graphs.encoder, "rows", np.float32, ["B", 1, "N", 4])
    mask = graph_input(graphs.encoder, "mask", np.float32, ["B", 1, "N", "N"])
    build = Builder(graphs.encoder, "encoder")
    attended = build.variable("attended", ["B", 1, "N", 4])
    build.add("Attention", [rows, rows, rows, mask], {"scale": 0.5}, outputs=[attended])
    graphs.encoder.outputs = [attended]
    lower_precision(graphs, precision)
    graph = models(graphs, tmp_path)["encoder"].graph
    node = next(node for node in graph.node if node.op_type == "Attention")
    assert {types_of(graph)[name] for name in node.input} == {LOW[precision]}
    simulate_precision(graphs)
    given = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)
    lowest = np.finfo(np.float32).min
    hidden = np.array([[[[lowest, lowest], [0, lowest]]]], np.float32)
    (found,) = sessions(graphs, tmp_path)[0].run(None, {"rows": given, "mask": hidden})
    np.testing.assert_array_equal(found[0, 0, 1], [0, 1, 2, 3])
    assert (given[0, 0, 0] <= found[0, 0, 0]).all() and (found[0, 0, 0] <= given[0, 0, 1]).all()


def test_a_weight_beyond_the_range_is_named(sizes: Sizes) -> None:
    weight = np.eye(4, dtype=np.float32)
    weight[1, 2] = -70000
    with pytest.raises(
        PassError, match=r"lower_precision: weight holds 70000, beyond the range of float16; take --precision fp32"
    ):
        lower_precision(small_graphs(sizes, weight), "fp16")
    assert lower_precision(small_graphs(sizes, weight), "bf16").matched > 0
    weight[1, 2] = np.finfo(np.float32).max
    with pytest.raises(PassError, match=r"weight holds 3\.40282e\+38, beyond the range of bfloat16; stay with fp32"):
        lower_precision(small_graphs(sizes, weight), "bf16")
    weight[1, 2] = -np.inf
    assert lower_precision(small_graphs(sizes, weight), "fp16").matched > 0


@pytest.mark.parametrize("precision", ["fp32", "half"])
def test_other_precisions_are_refused(sizes: Sizes, precision: str) -> None:
    with pytest.raises(PassError, match=f"precision is '{precision}', expected fp16 or bf16"):
        lower_precision(small_graphs(sizes), precision)


def test_types_that_do_not_agree_are_named(sizes: Sizes) -> None:
    graphs = small_graphs(sizes)
    next(tensor for tensor in graphs.decoder.inputs if tensor.name == "level").dtype = np.dtype(np.int64)
    with pytest.raises(PassError, match=r"lower_precision: decoder: the types do not agree: .*Mul"):
        lower_precision(graphs, "fp16")


def test_weights_stay_shared_and_the_original_graphs_unchanged(
    bundles: BundleCache, known: Known, tmp_path: Path
) -> None:
    canonical = bundles.trace("bart")[1]
    graphs = without_head(canonical, "el")
    run = known("bart")[0]
    before = logits_of(graphs, run)
    low = graphs.copy()
    result = lower_precision(low, "fp16")
    full, half = tmp_path / "full", tmp_path / "half"
    for folder, written in ((full, graphs), (half, low)):
        folder.mkdir()
        write_graphs(written, folder)
    sizes = [(folder / WEIGHTS).stat().st_size for folder in (full, half)]
    assert sizes[1] < 0.6 * sizes[0]
    saved = result.bytes_saved(RunSize())
    assert saved == pytest.approx(sizes[0] - sizes[1], rel=0.1)
    np.testing.assert_array_equal(logits_of(graphs, run), before)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("variant", ["dedup", "baseline"])
def test_the_graphs_of_a_bundle(bundles: BundleCache, tmp_path: Path, variant: str, precision: str) -> None:
    """Read again from its files, they become what they would have become before they were written."""
    bundle = Bundle.load(bundles(variant, "t5"))
    graphs = read_graphs(bundle)
    standard_operators(graphs)
    lower_precision(graphs, precision)
    found = models(graphs, tmp_path)
    expected = lowered(bundles, "t5", variant, precision)
    for name, model in found.items():
        assert_typed(model.graph, LOW[precision])
        operators = {node.op for node in getattr(expected, name).nodes if node.domain == DOMAIN}
        assert len(model.functions) == len(operators) + (name == "decoder")  # BeamTopK calls NGramBlock
    ops = {name: Counter(node.op_type for node in model.graph.node) for name, model in found.items()}
    before = Counter(node.op for node in expected.decoder.nodes)
    assert ops["decoder"]["Gemm"] + ops["decoder"]["MatMul"] == before["Gemm"] + before["MatMul"]
    for op in (*OPERATORS, "Attention", "LayerNormalization", "RMSNormalization", "Relu", "Gather"):
        assert ops["decoder"][op] == before[op], op
    # A float32 bundle has an encoder for CPUs, which is read as the nodes of its functions.
    assert ops["encoder"]["Attention"] == sum(node.op == "Attention" for node in expected.encoder.nodes)
