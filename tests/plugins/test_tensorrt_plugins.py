"""The TensorRT plugins without a GPU: TensorRT's callbacks, and kernels that run on the host shim of CUDA."""

from __future__ import annotations

import importlib.util
import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from support.operators.cases import GPU_MODULES, outputs_of
from support.operators.cuda_host import FLOATS, FLOATS_IN_TURN, ORDERS, GuardedMemory, HostLauncher
from support.operators.kernel_results import check_result, rounded
from support.operators.kernel_runs import GPU, Ints, shapes_of, types_of
from support.operators.plugin_runs import described, described_range, node_of, plugin_of, run_plugin
from support.operators.runs import model_of
from tightbeam.plugins.ops import OPERATORS
from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.tensorrt import native
from tightbeam.plugins.tensorrt.distribution import TensorRT
from tightbeam.plugins.tensorrt.errors import TensorRTError
from tightbeam.plugins.tensorrt.native import Gpu, Kernel, Plan, TensorAt, plan
from tightbeam.plugins.tensorrt.plugin import NAMESPACE, VERSION, make_plugin, plugin_errors, register_plugins
from tightbeam.plugins.tensorrt.shapes import output_shapes

CASES = [(name, case) for name, module in GPU_MODULES.items() for case in module.cases()]
IDS = [f"{name}-{case.name}" for name, case in CASES]


@pytest.fixture(scope="module", autouse=True)
def tensorrt() -> TensorRT:
    """The installed TensorRT. Without one, the tests are skipped."""
    if not any(importlib.util.find_spec(module) for module in ("tensorrt", "tensorrt_rtx_bindings")):
        pytest.skip("neither tensorrt nor tensorrt_rtx is here")
    return register_plugins()


@pytest.fixture(autouse=True)
def no_plugin_errors() -> None:
    plugin_errors.clear()


def on_host(name: str, case: Case, dtype: str, order: int = 0, in_place: bool = False) -> dict[str, Array]:
    return run_plugin(name, case, dtype, HostLauncher(GPU, order), GuardedMemory, in_place=in_place)


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize(("name", "case"), CASES, ids=IDS)
def test_enqueue_on_the_host(name: str, case: Case, dtype: str) -> None:
    case = rounded(case, dtype)
    order = ORDERS[(IDS.index(f"{name}-{case.name}") + list(FLOATS).index(dtype)) % len(ORDERS)]
    check_result(name, case, dtype, on_host(name, case, dtype, order))


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
def test_ngram_block_in_place(dtype: str) -> None:
    for case in (rounded(case, dtype) for case in GPU_MODULES["NGramBlock"].cases()):
        check_result("NGramBlock", case, dtype, on_host("NGramBlock", case, dtype, in_place=True))


def test_enqueue_without_optional_outputs() -> None:
    case = GPU_MODULES["SourceAttention"].cases()[1]
    table, expected = OPERATORS["SourceAttention"], on_host("SourceAttention", case, "float32")
    arrays = {name: np.array(array) for name, array in case.inputs.items()} | {
        "output": np.zeros_like(expected["output"])
    }
    plugin = make_plugin("SourceAttention", "query key value mask -> output", case.attributes, HostLauncher(GPU))
    kinds = {entry.name: "bool" if entry.type == "bool" else "float32" for entry in table.inputs} | {
        "output": "float32"
    }
    descriptions = {name: described(array.shape, kinds[name]) for name, array in arrays.items()}
    addresses = {name: array.ctypes.data for name, array in arrays.items()}
    workspace = np.zeros(2**20, np.uint8)
    found = plugin.enqueue(
        [descriptions[name] for name in case.inputs],
        [descriptions["output"]],
        [addresses[name] for name in case.inputs],
        [addresses["output"]],
        workspace.ctypes.data,
        0,
    )
    assert found == 0, plugin_errors
    np.testing.assert_array_equal(arrays["output"], expected["output"])


# ---- tables and shapes


@pytest.mark.parametrize("name", GPU_MODULES)
def test_operators_are_in_their_folders(name: str) -> None:
    assert GPU_MODULES[name].__name__.split(".")[-2] == OPERATORS[name].folder


def test_a_library_of_other_operators_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = replace(OPERATORS["NGramBlock"], may_be_zero=("T",))
    monkeypatch.setattr(native, "OPERATORS", {**OPERATORS, "NGramBlock": changed})
    native._library.cache_clear()
    with pytest.raises(TensorRTError, match=r"compiled for other operators .*; install tightbeam again"):
        plan("NGramBlock", "float32", {}, {}, {}, Gpu(1, 1), 0)
    native._library.cache_clear()


@pytest.mark.parametrize(("name", "case"), CASES, ids=IDS)
def test_c_plus_plus_solves_for_the_same_shapes(name: str, case: Case) -> None:
    """C++ accepts the outputs' shapes that Python finds, and no others."""
    given = {entry.name for entry in OPERATORS[name].inputs if entry.gives is not None}
    inputs = {tensor: TensorAt(array.shape, 4096) for tensor, array in case.inputs.items() if tensor not in given}
    shares = {entry.name: entry.updates for entry in OPERATORS[name].outputs}
    outputs = {
        tensor: TensorAt(shape, 4096 if shares[tensor] else 8192) for tensor, shape in shapes_of(name, case).items()
    }
    plan(name, "float32", inputs, outputs, case.attributes, Gpu(132, 227 * 1024), 0)
    for tensor, output in outputs.items():
        other = {**outputs, tensor: TensorAt((*output.shape[:-1], output.shape[-1] + 1), output.address)}
        with pytest.raises(TensorRTError, match=rf"{name}: \w+ is "):
            plan(name, "float32", inputs, other, case.attributes, Gpu(132, 227 * 1024), 0)


@pytest.mark.parametrize(("name", "case"), CASES, ids=IDS)
def test_output_shapes_match_the_definition(name: str, case: Case) -> None:
    exact = GPU_MODULES[name].exact(case)
    assert shapes_of(name, case) == {tensor: exact[tensor].shape for tensor in outputs_of(name, case)}


def built(tensorrt: TensorRT, name: str, case: Case, dtype: str) -> tuple[Any, bytes]:
    """A network of one node, through TensorRT's parser; and the engine."""
    trt = tensorrt.trt
    inputs = {t: array.astype(FLOATS[dtype]) if t in case.floats else array for t, array in case.inputs.items()}
    given = [entry.name for entry in OPERATORS[name].inputs if entry.gives is not None]
    attributes = {**case.attributes, "tensors": node_of(name, case)}
    if given:
        attributes["tensorrt_plugin_shape_input_indices"] = [list(inputs).index(tensor) for tensor in given]
    model = model_of(name, inputs, attributes, outputs_of(name, case), with_function=False)
    (node,) = model.graph.node
    node.input[:] = list(inputs)  # TensorRT's parser takes no input that is missing
    for info in list(model.graph.input):
        if info.name in given:
            model.graph.input.remove(info)
            model.graph.initializer.append(onnx.numpy_helper.from_array(inputs[info.name], info.name))
        else:
            kind = info.type.tensor_type.elem_type
            info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, kind, inputs[info.name].shape))
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = tensorrt.network(builder)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(model.SerializeToString()), [str(parser.get_error(i)) for i in range(parser.num_errors)]
    found = {network.get_output(i).name: network.get_output(i) for i in range(network.num_outputs)}
    described = {tensor: (tuple(output.shape), output.dtype) for tensor, output in found.items()}
    engine = builder.build_serialized_network(network, tensorrt.configure(builder, tensorrt.capabilities[1:2]))
    assert engine is not None, plugin_errors
    return described, bytes(engine)


def first_and_fullest(name: str) -> list[Case]:
    cases: list[Case] = GPU_MODULES[name].cases()
    return [cases[0], max(cases, key=lambda case: len(case.inputs))]


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("name", GPU_MODULES)
def test_engine_of_one_node(tensorrt: TensorRT, name: str, dtype: str) -> None:
    """TensorRT finds the plugin and its output shapes and types, and stores all attributes of the node."""
    if not tensorrt.is_rtx:
        pytest.skip("tensorrt builds no engine without a GPU")
    for case in first_and_fullest(name):
        outputs, engine = built(tensorrt, name, case, dtype)
        kinds = {tensor: described((), kind).type for tensor, kind in types_of(name, dtype).items()}
        assert outputs == {tensor: (shape, kinds[tensor]) for tensor, shape in shapes_of(name, case).items()}
        assert node_of(name, case).encode() in engine
        for attribute in OPERATORS[name].attributes:
            if attribute.name in case.attributes:
                kind = np.int32 if attribute.type == "int" else np.float32
                assert kind(case.attributes[attribute.name]).tobytes() in engine
    assert not plugin_errors


# ---- callbacks


@pytest.mark.parametrize("name", GPU_MODULES)
def test_number_and_types_of_outputs(name: str) -> None:
    for case in first_and_fullest(name):
        plugin = plugin_of(name, case)
        assert plugin.num_outputs == len(outputs_of(name, case))
        for dtype in FLOATS:
            kinds = {tensor: described((), kind).type for tensor, kind in types_of(name, dtype).items()}
            given = [kinds[entry.name] for entry in plugin.node.on_device]
            assert plugin.get_output_data_types(given) == [kinds[tensor] for tensor in outputs_of(name, case)]
    assert not plugin_errors


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("name", GPU_MODULES)
def test_supported_types_and_formats(tensorrt: TensorRT, name: str, dtype: str) -> None:
    trt = tensorrt.trt
    case = first_and_fullest(name)[1]
    plugin, types = plugin_of(name, case), types_of(name, dtype)
    names = [entry.name for entry in (*plugin.node.on_device, *plugin.node.outputs)]
    floats = {described((), kind).type for kind in FLOATS}
    choosing = next(i for i, entry in enumerate(plugin.node.on_device) if entry.type == "Float")
    for position, tensor in enumerate(names):
        described_all = [described_range((), types[other]) for other in names]
        right = described_all[position].desc.type
        for kind in trt.DataType.__members__.values():
            given = described_range((), dtype)
            given.desc.type = kind
            described_all[position] = given
            expected = kind in floats if position == choosing else kind == right
            found = plugin.supports_format_combination(position, described_all, len(plugin.node.on_device))
            assert found is expected, (tensor, kind)
        for layout in trt.TensorFormat.__members__.values():
            given = described_range((), types[tensor])
            given.desc.format = layout
            described_all[position] = given
            found = plugin.supports_format_combination(position, described_all, len(plugin.node.on_device))
            assert found is (layout == trt.TensorFormat.LINEAR), (tensor, layout)
    assert not plugin_errors


@pytest.mark.parametrize("name", GPU_MODULES)
def test_caches_are_written_in_place(name: str) -> None:
    for case in first_and_fullest(name):
        plugin = plugin_of(name, case)
        inputs = [tensor for tensor in case.inputs if tensor != "candidates"]
        for index, tensor in enumerate(outputs_of(name, case)):
            own = inputs.index(tensor.removesuffix("_out")) if tensor.endswith("cache_out") else -1
            assert plugin.get_aliased_input(index) == own
    assert not plugin_errors


@pytest.mark.parametrize(("name", "case"), CASES, ids=IDS)
def test_a_plugin_is_restored_from_its_serialized_fields(tensorrt: TensorRT, name: str, case: Case) -> None:
    plugin = plugin_of(name, case)
    fields = plugin.get_fields_to_serialize()
    overwritten = [np.full(size, 0x7F, np.int8) for size in range(1, 300)]  # where memory of the fields was freed
    creator = tensorrt.trt.get_plugin_registry().get_creator(name, VERSION, NAMESPACE)
    again = creator.create_plugin(name, fields, tensorrt.trt.TensorRTPhase.RUNTIME)
    assert not plugin_errors and len(overwritten) == 299
    assert (again.node.inputs, again.node.outputs) == (plugin.node.inputs, plugin.node.outputs)
    assert again.node.attributes == {key: float(np.float32(value)) for key, value in case.attributes.items()}
    assert again.clone().node == again.node


# ---- workspaces


def random_sizes(name: str, most: dict[str, int], generator: random.Random) -> dict[str, int]:
    sizes = {letter: generator.randint(1, size) for letter, size in most.items()}
    if name == "BeamTopK":
        sizes["C"] = min(sizes["C"], sizes["vocabulary"])
    else:
        sizes["Q"] = generator.choice([1, 2, 3, 4])  # H = Q G
    return sizes


def shapes_by_size(name: str, size: dict[str, int]) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    if name == "BeamTopK":
        B, M, C, T, P, vocabulary = (size[letter] for letter in ("B", "M", "C", "T", "P", "vocabulary"))
        scalars = {scalar: () for scalar in ("normalize", "repetition_penalty", "no_repeat_ngram_size")}
        inputs = {"logits": (B * M, vocabulary), "beam_scores": (B, M), "history": (B * M, T), "lengths": (B,)}
        return {**inputs, "banned": (B * M, P), **scalars}, {t: (B, C) for t in ("scores", "beams", "tokens")}
    B, M, G, K, V, N = (size[letter] for letter in ("B", "M", "G", "K", "V", "N"))
    R, H = B * M, G * size["Q"]
    if name == "SourceAttention":
        inputs = {"query": (R, H * K), "key": (B, G, N, K), "value": (B, G, N, V), "mask": (B, N)}
        return inputs, {"output": (R, H * V), "lse": (R, H)}
    return {"query": (R, H, K), "states": (B, N, G * K), "mask": (B, N)}, {"output": (R, H, G * K), "lse": (R, H)}


MOST = {
    "SourceAttention": {"B": 8, "M": 9, "G": 6, "K": 160, "V": 300, "N": 3000},
    "LatentAttention": {"B": 8, "M": 9, "G": 6, "K": 200, "V": 1, "N": 3000},
    "BeamTopK": {"B": 8, "M": 20, "C": 60, "T": 30, "P": 9, "vocabulary": 60000},
}


@pytest.mark.parametrize("dtype", FLOATS_IN_TURN)
@pytest.mark.parametrize("name", MOST)
def test_workspace_covers_all_smaller_shapes(name: str, dtype: str) -> None:
    types = types_of(name, dtype)
    attributes = {} if name == "BeamTopK" else {"scale": 1.0}
    generator = random.Random(0)
    used = 0
    for _ in range(40):
        largest = random_sizes(name, MOST[name], generator)
        before, after = shapes_by_size(name, largest)
        plugin = make_plugin(
            name, f"{' '.join(before)}{' candidates' * (name == 'BeamTopK')} -> {' '.join(after)}", attributes
        )
        asked = plugin.get_workspace_size(
            *([described_range(shape, types[tensor]) for tensor, shape in shapes.items()] for shapes in (before, after))
        )
        assert not plugin_errors
        for step in range(20):
            smaller = {letter: generator.randint(1, size) for letter, size in largest.items()} if step else largest
            if name == "BeamTopK":
                smaller["C"] = min(smaller["C"], smaller["vocabulary"])
            gpu = Gpu(generator.choice([1, 8, 46, 80, 108, 132, 192, 256]), generator.choice([48, 99, 163, 227]) * 1024)
            address = 4096 + generator.choice([0, 8])  # rows that are aligned, and that are not
            placed = (
                {tensor: TensorAt(shape, address) for tensor, shape in shapes.items()}
                for shapes in shapes_by_size(name, smaller)
            )
            needed = plan(name, dtype, *placed, attributes, gpu, 0)
            assert needed.workspace_bytes <= needed.most_workspace_bytes <= asked
            used += needed.workspace_bytes > 0
    assert used > 100


# ---- refusals


class NoLauncher:
    """A launcher that refuses every kernel."""

    gpu = GPU

    def launch(self, folder: str, kernel: Kernel, stream: int) -> None:
        raise AssertionError(f"{kernel.name} was launched")


NGRAM = {"scores": (2, 30), "history": (2, 5), "lengths": (2,), "ngram_size": ()}
BLOCKED = {"blocked": (2, 30)}


def plan_of(
    name: str, inputs: dict[str, Any], outputs: dict[str, Any], attributes: dict[str, float] | None = None
) -> Plan:
    """The plan of a call. A tensor is given as a shape, or as a shape at an address."""
    placed = (
        {tensor: at if isinstance(at, TensorAt) else TensorAt(at, 4096) for tensor, at in tensors.items()}
        for tensors in (inputs, outputs)
    )
    return plan(name, "float32", *placed, attributes or {}, GPU, 0)


def test_a_valid_call_is_planned() -> None:
    (kernel,) = plan_of("NGramBlock", NGRAM, BLOCKED).kernels
    assert kernel.name == "tightbeam::device::ngram_block<float>"


def without(tensors: dict[str, Any], name: str) -> dict[str, Any]:
    return {tensor: shape for tensor, shape in tensors.items() if tensor != name}


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (NGRAM | {"scores": (2, 3, 10)}, BLOCKED, r"NGramBlock: scores is \[2, 3, 10\], expected \[R, vocabulary\]"),
        (NGRAM | {"scores": ()}, BLOCKED, r"NGramBlock: scores is \[\], expected \[R, vocabulary\]"),
        (NGRAM | {"history": (3, 5)}, BLOCKED, r"NGramBlock: history is \[3, 5\], expected \[R, T\] with R = 2"),
        (NGRAM | {"history": (2, 0)}, BLOCKED, r"NGramBlock: history is \[2, 0\], .* with T at least 1"),
        (NGRAM | {"ngram_size": (2,)}, BLOCKED, r"NGramBlock: ngram_size is \[2\], expected one number"),
        (NGRAM, {"blocked": (2, 31)}, r"NGramBlock: blocked is \[2, 31\], expected \[R, vocabulary\], \[2, 30\]"),
        (NGRAM, {"blocked": (30,)}, r"NGramBlock: blocked is \[30\], expected"),
        (without(NGRAM, "lengths"), BLOCKED, "NGramBlock: lengths is missing"),
        (without(NGRAM, "ngram_size"), BLOCKED, "NGramBlock: ngram_size is missing"),
        (NGRAM, {}, "NGramBlock: blocked is missing"),
        (NGRAM | {"lse": (2,)}, BLOCKED, "the operator has no tensors lse, expected scores, history, "),
        (NGRAM, BLOCKED | {"scores": (2, 30)}, "the operator has no tensors scores, expected blocked"),
        (
            NGRAM | {"scores": (2, 2**31)},
            {"blocked": (2, 2**31)},
            "NGramBlock: vocabulary is 2147483648, more than an int",
        ),
    ],
)
def test_wrong_shapes_are_not_planned(inputs: dict[str, Any], outputs: dict[str, Any], message: str) -> None:
    with pytest.raises(TensorRTError, match=message):
        plan_of("NGramBlock", inputs, outputs)


def beam_latent_attention() -> tuple[dict[str, Any], dict[str, Any]]:
    inputs = {
        "query": (2, 8),
        "row": (2, 4),
        "cache": TensorAt((2, 1, 6, 4), 8192),
        "ancestry": (1, 2, 3),
        "lengths": (1,),
    }
    return inputs, {"output": (2, 8), "cache_out": TensorAt((2, 1, 6, 4), 8192)}


def test_a_cache_is_not_planned_in_other_memory() -> None:
    inputs, outputs = beam_latent_attention()
    plan_of("BeamLatentAttention", inputs, outputs, {"scale": 1.0})
    outputs["cache_out"] = TensorAt((2, 1, 6, 4), 16384)
    with pytest.raises(TensorRTError, match="cache_out and cache are in different memory, expected the same"):
        plan_of("BeamLatentAttention", inputs, outputs, {"scale": 1.0})


@pytest.mark.parametrize("extra", [{"scale_cache": (2, 1, 6, 1)}, {"row_scales": (2, 1)}])
def test_scales_without_scale_cache_are_refused(extra: dict[str, Any]) -> None:
    inputs, outputs = beam_latent_attention()
    with pytest.raises(TensorRTError, match=r"has one of .*scale.*expected both or none"):
        plan_of("BeamLatentAttention", inputs | extra, outputs, {"scale": 1.0})


def test_wrong_attributes_are_not_planned() -> None:
    inputs, outputs = beam_latent_attention()
    with pytest.raises(TensorRTError, match="BeamLatentAttention: attribute window is -1, expected 0 or more"):
        plan_of("BeamLatentAttention", inputs, outputs, {"scale": 1.0, "window": -1})


@pytest.mark.parametrize("candidates", [31, 1000])
def test_more_candidates_than_tokens_are_not_planned(candidates: int) -> None:
    before, after = shapes_by_size("BeamTopK", {"B": 2, "M": 3, "C": candidates, "T": 4, "P": 0, "vocabulary": 30})
    with pytest.raises(TensorRTError, match=f"BeamTopK: candidates is {candidates}, expected 1 to 30"):
        plan_of("BeamTopK", before, after)


def test_outputs_that_contradict_one_another_are_not_planned() -> None:
    before, after = shapes_by_size("BeamTopK", {"B": 2, "M": 3, "C": 5, "T": 4, "P": 0, "vocabulary": 30})
    with pytest.raises(TensorRTError, match=r"BeamTopK: tokens is \[2, 6\], expected \[B, C\], \[2, 5\]"):
        plan_of("BeamTopK", before, after | {"tokens": (2, 6)})


@pytest.mark.parametrize(
    "tensors",
    [
        "",
        "->",
        "scores history lengths ngram_size blocked",
        "scores history ngram_size -> blocked",
        "scores history lengths ngram_size ->",
        "history scores lengths ngram_size -> blocked",
        "scores history lengths ngram_size ngram_size -> blocked",
        "scores history lengths ngram_size other -> blocked",
        "scores history lengths ngram_size -> blocked other",
        "scores history lengths ngram_size -> blocked -> blocked",
    ],
)
def test_invalid_tensor_names_are_refused(tensorrt: TensorRT, tensors: str) -> None:
    expected = "NGramBlock: the attribute tensors is .*, expected names of scores history lengths ngram_size -> blocked"
    with pytest.raises(TensorRTError, match=expected):
        make_plugin("NGramBlock", tensors, {})
    trt = tensorrt.trt
    creator = trt.get_plugin_registry().get_creator("NGramBlock", VERSION, NAMESPACE)
    text = np.frombuffer(tensors.encode(), np.int8)
    fields = trt.PluginFieldCollection([trt.PluginField("tensors", text, trt.PluginFieldType.CHAR)])
    assert creator.create_plugin("node", fields, trt.TensorRTPhase.BUILD) is None
    assert len(plugin_errors) == 1 and re.match(expected, plugin_errors[0])


def test_former_names_of_tensors_are_read(tensorrt: TensorRT) -> None:
    """Engines of earlier versions call prefix_output prior_output."""
    inputs = "projected key_cache value_cache ancestry lengths prior_output prior_lse"
    tensors = f"{inputs} -> output key_cache_out value_cache_out"
    made = make_plugin("BeamAttention", tensors, {"scale": 1.0})
    assert made.node.tensors == tensors.replace("prior_", "prefix_")


def test_missing_attributes_are_refused(tensorrt: TensorRT) -> None:
    trt, tensors = tensorrt.trt, "query key value mask -> output"
    with pytest.raises(TensorRTError, match="SourceAttention: attribute scale is missing; export the model again"):
        make_plugin("SourceAttention", tensors, {"weight_threshold": 0.0})
    creator = trt.get_plugin_registry().get_creator("SourceAttention", VERSION, NAMESPACE)
    assert {field.name for field in creator.field_names} == {"scale", "weight_threshold", "softcap", "tensors"}
    for fields in ([], [trt.PluginField("scale", np.array([], np.float32), trt.PluginFieldType.FLOAT32)]):
        text = np.frombuffer(tensors.encode(), np.int8)
        named = trt.PluginFieldCollection([*fields, trt.PluginField("tensors", text, trt.PluginFieldType.CHAR)])
        assert creator.create_plugin("node", named, trt.TensorRTPhase.BUILD) is None
    assert plugin_errors == ["SourceAttention: attribute scale is missing; export the model again"] * 2


@pytest.mark.parametrize(
    ("scores", "history", "blocked", "message"),
    [
        ((2, 3, 10), (2, 5), (2, 30), "scores is"),
        ((2, 30), (3, 5), (2, 30), "history is"),
        ((2, 30), (2, 5), (2, 31), "blocked is"),
    ],
)
def test_enqueue_with_wrong_shapes_launches_nothing(scores: Any, history: Any, blocked: Any, message: str) -> None:
    plugin = make_plugin("NGramBlock", "scores history lengths ngram_size -> blocked", {}, NoLauncher())
    inputs = [
        described(scores, "float32"),
        described(history, "int64"),
        described((2,), "int32"),
        described((), "int64"),
    ]
    found = plugin.enqueue(inputs, [described(blocked, "float32")], [4096] * 4, [4096], 0, 0)
    assert found == -1
    assert len(plugin_errors) == 1 and f"NGramBlock: {message}" in plugin_errors[0]


def test_callbacks_never_raise_into_tensorrt() -> None:
    plugin = make_plugin("NGramBlock", "scores history lengths ngram_size -> blocked", {}, NoLauncher())
    one = described_range((2, 30), "float32")
    calls = [
        (plugin.get_output_data_types, ([],), []),
        (plugin.get_output_shapes, ([], [], None), []),
        (plugin.supports_format_combination, (9, [one], 1), True),
        (plugin.get_aliased_input, (5,), -1),
        (plugin.get_workspace_size, ([one], []), 0),
        (plugin.enqueue, ([one.desc], [], [0], [], 0, 0), -1),
        (plugin.enqueue, (None, None, None, None, None, None), -1),
    ]
    for count, (method, arguments, failed) in enumerate(calls, start=1):
        assert method(*arguments) == failed
        assert len(plugin_errors) == count, method


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"query": [4, 8], "key": [2, 1, 7]}, r"SourceAttention: key has 3 dimensions, expected \[B, G, N, K\]"),
        ({"query": [4, 8], "mask": [2, 7]}, r"SourceAttention: no input gives H, V of output \[B M, H V\]"),
    ],
)
def test_output_shapes_that_cannot_be_inferred(shapes: dict[str, list[int]], message: str) -> None:
    with pytest.raises(TensorRTError, match=message):
        output_shapes(OPERATORS["SourceAttention"], shapes, {}, Ints())
