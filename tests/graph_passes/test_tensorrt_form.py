"""The passes that make TensorRT's form, each alone: graphs before against graphs after, and torch in float64."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime as ort
import pytest
import torch

from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.passes.precision_runs import logits_of, source_run, torch_logits
from support.passes.runs import encoder_run
from support.slow_cases import slow_unless
from support.tolerance import assert_close
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.export.writing.graphs import read_graphs, write_graphs
from tightbeam.graph_passes import PRESETS, ModelGraphs, PassError, passes_of, same_for_all
from tightbeam.graph_passes.cleanup.search_head import search_head
from tightbeam.graph_passes.tensorrt.decompose_attention import decompose_attention
from tightbeam.graph_passes.tensorrt.fixed_capacity import fixed_capacity
from tightbeam.graph_passes.tensorrt.plugin_nodes import from_plugin_nodes, to_plugin_nodes
from tightbeam.graph_passes.tensorrt.standard_operators import standard_operators
from tightbeam.plugins.ops import DOMAIN, IR_VERSION, OPERATORS, OPSET

Array = Any


def variant_of(bundles: BundleCache, family: str, variant: str) -> ModelGraphs:
    """The graphs of a variant without the search head, so that they give logits."""
    graphs = bundles.trace(family)[1].copy()
    plan = same_for_all(PRESETS[variant], graphs.sizes.L, "")
    for apply in passes_of(plan, one_softmax=graphs.sizes.one_softmax):
        if apply is not search_head:
            apply(graphs)
    return graphs


@pytest.mark.parametrize(
    ("family", "variant"),
    slow_unless(
        itertools.product(
            ("bart", "t5", "whisper", "prophetnet", "gpt2", "llama", "gemma3_text", "mistral", "gpt_bigcode"),
            ("baseline", "dedup"),
        ),
        lambda family, variant: variant == "dedup" or family in ("bart", "gpt2"),
    ),
)
def test_attention_decomposed_is_as_exact(bundles: BundleCache, family: str, variant: str, tmp_path: Path) -> None:
    """The families cover heads that share keys, windows, biases by distance and causal prompts."""
    model = bundles.trace(family)[0].model
    run = source_run(model, tmp_path)
    before = variant_of(bundles, family, variant)
    after = before.copy()
    expected = sum(node.op == "Attention" for graph in (before.encoder, before.decoder) for node in graph.nodes)
    assert decompose_attention(after).matched == expected > 0
    assert not any(node.op == "Attention" for graph in (after.encoder, after.decoder) for node in graph.nodes)
    assert_close(logits_of(after, run), torch_logits(model, run, torch.float64), logits_of(before, run))


@pytest.mark.parametrize("family", ["bart", "t5", "whisper"])
def test_an_encoder_for_cpus_is_read_as_the_nodes_of_its_functions(
    bundles: BundleCache, family: str, tmp_path: Path
) -> None:
    """EncoderAttention, which no GPU has a kernel for, becomes attention that TensorRT can be given."""
    arguments = {"generation": WHISPER_GENERATION} if family == "whisper" else {}
    bundle = Bundle.load(bundles("dedup", family, **arguments))
    written = onnx.load(bundle.file(bundle.manifest.encoder), load_external_data=False)
    operators = sum(node.op_type == "EncoderAttention" for node in written.graph.node)
    graphs = read_graphs(bundle)
    standard_operators(graphs)
    assert sum(node.op == "Attention" for node in graphs.encoder.nodes) == operators > 0
    assert not any(node.domain == DOMAIN for node in graphs.encoder.nodes)
    decomposed = graphs.copy()
    decompose_attention(decomposed)
    decomposed.encoder.name = "decomposed"
    found = [encoder_run(each, tmp_path / each.encoder.name, (9, 5)) for each in (graphs, decomposed)]
    counted = found[0][0].get("attention_mask", np.ones(1)).astype(np.bool_)
    for name, expected in found[0][1].items():
        close = np.isclose(found[1][1][name], expected, rtol=0, atol=2e-6 * np.abs(expected).max())
        assert (close if family == "whisper" else close.swapaxes(1, 2)[counted]).all()


@pytest.mark.parametrize("softcap", [0.0, 0.7])
def test_fully_masked_row_is_finite(bundles: BundleCache, softcap: float) -> None:
    sizes = bundles.trace("bart")[1].sizes
    shapes = {"query": (1, 2, 3, 4), "key": (1, 2, 5, 4), "value": (1, 2, 5, 6), "mask": (1, 1, 3, 5)}
    kinds = {name: np.dtype(np.bool_ if name == "mask" else np.float32) for name in shapes}
    inputs = [gs.Variable(name, kinds[name], shape) for name, shape in shapes.items()]
    output = gs.Variable("output", np.dtype(np.float32), (1, 2, 3, 6))
    node = gs.Node("Attention", "attention", {"scale": 0.5, "softcap": softcap}, inputs, [output])
    graph = gs.Graph([node], inputs, [output], opset=OPSET)
    graphs = ModelGraphs(graph, gs.Graph(opset=OPSET), sizes)
    generator = np.random.default_rng(0)
    feeds: dict[str, Array] = {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    feeds["mask"] = generator.random(shapes["mask"]) < 0.5
    feeds["mask"][:, :, 1] = False

    def run() -> Array:
        model = gs.export_onnx(graphs.encoder)
        model.ir_version = IR_VERSION
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, feeds)[0]

    before = run()
    decompose_attention(graphs)
    after = run()
    np.testing.assert_allclose(after[:, :, [0, 2]], before[:, :, [0, 2]], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after[:, :, 1], feeds["value"].mean(axis=2), rtol=1e-5, atol=1e-6)


def test_attention_of_unknown_form_is_refused(bundles: BundleCache) -> None:
    graphs = variant_of(bundles, "bart", "dedup")
    node = next(node for node in graphs.encoder.nodes if node.op == "Attention")
    node.attrs["q_num_heads"] = 3
    with pytest.raises(PassError, match=r"decompose_attention: .* is not of the form that a trace gives"):
        decompose_attention(graphs)


def test_caches_get_a_fixed_capacity(bundles: BundleCache) -> None:
    graphs = read_graphs(Bundle.load(bundles("dedup")))
    result = fixed_capacity(graphs, 21)
    shapes = {tensor.name: list(tensor.shape) for tensor in (*graphs.decoder.inputs, *graphs.decoder.outputs)}
    assert result.matched == 12
    for state in graphs.states:
        assert shapes[state.input][2] == shapes[state.output][2] == state.shape[2] == 21
    assert shapes["ancestry"] == ["B", "M", "T_ancestry"]
    assert shapes["history"] == ["R", "T_history"]
    assert "T_max" not in str(shapes)


def test_a_cache_that_grows_keeps_growing(bundles: BundleCache) -> None:
    graphs = read_graphs(Bundle.load(bundles("baseline")))
    result = fixed_capacity(graphs, 21)
    assert (result.matched, result.reason) == (0, "no cache is written in place")
    assert {state.shape[2] for state in graphs.states} == {"T"}


@pytest.mark.parametrize(
    ("family", "variant"), [("bart", "dedup"), ("t5", "el"), ("prophetnet", "slim"), ("llama", "dedup")]
)
def test_plugin_nodes_round_trip(bundles: BundleCache, family: str, variant: str, tmp_path: Path) -> None:
    """Optional inputs between others are among these."""
    write_graphs(read_graphs(Bundle.load(bundles(variant, family))), tmp_path)
    model = onnx.load(tmp_path / "decoder.onnx", load_external_data=False)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    count = to_plugin_nodes(changed)
    ours = [node for node in changed.graph.node if node.op_type in OPERATORS]
    assert count == len(ours) == sum(node.domain == DOMAIN for node in model.graph.node)
    assert not changed.functions and all(node.domain == "" for node in changed.graph.node)
    for node in ours:
        assert all(node.input) and all(node.output)
        (tensors,) = (entry.s.decode() for entry in node.attribute if entry.name == "tensors")
        inputs, outputs = (names.split() for names in tensors.split("->"))
        assert (len(inputs), len(outputs)) == (len(node.input), len(node.output))
        sizes = [list(entry.ints) for entry in node.attribute if entry.name.startswith("tensorrt_plugin")]
        assert sizes == ([[8]] if node.op_type == "BeamTopK" else [])
    from_plugin_nodes(changed)
    assert [node.SerializeToString(deterministic=True) for node in changed.graph.node] == [
        node.SerializeToString(deterministic=True) for node in model.graph.node
    ]
    assert {entry.name for entry in changed.functions} == {entry.name for entry in model.functions}
