"""The CPU library in ONNX Runtime: the kernel that runs for a node, and types without a kernel."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from support.bundles.cache import BundleCache
from support.operators.runs import MODULES, model_of, outputs_of
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.errors import BundleError
from tightbeam.deploy.runtimes.onnxruntime_cpu import OnnxRuntimeCpu
from tightbeam.plugins.library import cpu_library
from tightbeam.plugins.ops import DOMAIN, IR_VERSION, OPERATORS, VERSION
from tightbeam.plugins.ops._case import Array, Case
from tightbeam.plugins.schema import FLOAT

LIBRARY = cpu_library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="the CPU library was not built: no C++ compiler at install")


def run(model: onnx.ModelProto, inputs: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # leaves the casts unchanged
    options.register_custom_ops_library(str(LIBRARY))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs: list[Array] = session.run(None, inputs)
    return outputs


@pytest.mark.parametrize("version", [1, VERSION])
def test_kernel_replaces_a_function_of_its_own_version_only(version: int) -> None:
    """The function body of this model is wrong on purpose, so that its result differs from the kernel's."""
    text = f"""
      <ir_version: {IR_VERSION}, opset_import: ["": 17, "{DOMAIN}": {version}]>
      g (float[R, voc] scores, int64[R, T] history, int32[R] lengths, int64 n) => (float[R, voc] blocked) {{
        blocked = {DOMAIN}.NGramBlock (scores, history, lengths, n)
      }}
      <domain: "{DOMAIN}", opset_import: ["": 17]>
      NGramBlock (scores, history, lengths, n) => (blocked) {{ blocked = Neg (scores) }}
    """
    inputs = {
        "scores": np.array([[1, 2, 3]], np.float32),
        "history": np.array([[0, 2]]),
        "lengths": np.array([2], np.int32),
        "n": np.array(1),
    }
    (blocked,) = run(onnx.parser.parse_model(text), inputs)
    expected = [-np.inf, 2, -np.inf] if version == VERSION else [-1, -2, -3]
    np.testing.assert_array_equal(blocked, [expected])


@pytest.mark.parametrize("variant", ["dedup", "el"])
def test_a_bundle_runs_the_kernels(bundles: BundleCache, variant: str) -> None:
    """Only the kernels refuse an invalid value; the function bodies run on."""
    engine = OnnxRuntimeCpu(Bundle.load(bundles(variant, "bart")), 1)
    decoding = engine.begin(np.full((2, 4), 7), np.ones((2, 4), np.int64), 2, 5, 4)
    decoding.inputs["candidates"].fill(4)
    decoding.inputs["ancestry"][:, 1, 0] = 1
    decoding.inputs["history_lengths"].fill(1)
    decoding.inputs["repetition_penalty"][...] = 1
    for value, message in ((99, r"BeamAttention: lengths\[0\] is 99"), (1, r"BeamTopK: banned\[0, 0\] is -9")):
        decoding.inputs["lengths"].fill(value)
        decoding.reserve_banned(1)
        decoding.inputs["banned"].fill(-9)
        with pytest.raises(BundleError, match=message):
            decoding.step()


@pytest.mark.parametrize(
    ("library", "message"),
    [
        (
            "/nowhere/library.so",
            "TIGHTBEAM_LIBRARY is '/nowhere/library.so', which is not a file; name a library, or 'none'",
        ),
        (__file__, "cannot load the operators' library .*name another in TIGHTBEAM_LIBRARY, or run the functions"),
    ],
)
def test_an_unloadable_library_is_reported(
    bundles: BundleCache, monkeypatch: pytest.MonkeyPatch, library: str, message: str
) -> None:
    monkeypatch.setenv("TIGHTBEAM_LIBRARY", library)
    with pytest.raises(BundleError, match=message):
        OnnxRuntimeCpu(Bundle.load(bundles("dedup", "bart")), 1)


def rounded_model(name: str, case: Case, kind: int, inside: bool) -> onnx.ModelProto:
    """The operator with inputs and outputs rounded to ``kind``. It runs in that type if ``inside``, else in float32."""
    model = model_of(name, case.inputs, case.attributes, outputs_of(name, case), with_function=False)
    graph, (node,) = model.graph, list(model.graph.node)
    of_float_type = {tensor.name for tensor in OPERATORS[name].tensors if tensor.type == FLOAT}
    floats = {*case.floats, *(output.name for output in graph.output)} & of_float_type
    before, after = [], []

    def cast(source: str, target: str, to: int) -> onnx.NodeProto:
        return onnx.helper.make_node("Cast", [source], [target], to=to)

    for index, tensor in enumerate(node.input):
        if tensor in floats:
            before += [cast(tensor, f"{tensor}.narrow", kind), cast(f"{tensor}.narrow", f"{tensor}.wide", 1)]
            node.input[index] = f"{tensor}.narrow" if inside else f"{tensor}.wide"
    for index, tensor in enumerate(node.output):
        if tensor in floats:
            node.output[index] = f"{tensor}.result"
            after += [cast(f"{tensor}.result", f"{tensor}.narrow", kind), cast(f"{tensor}.narrow", tensor, 1)]
    del graph.node[:]
    graph.node.extend([*before, node, *after])
    return model


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(onnx.TensorProto.FLOAT16, id="float16"),
        pytest.param(onnx.TensorProto.BFLOAT16, id="bfloat16", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", MODULES)
def test_16_bit_types_are_float32_rounded(name: str, kind: int) -> None:
    for case in MODULES[name].cases():
        inside, outside = (run(rounded_model(name, case, kind, inside), case.inputs) for inside in (True, False))
        for tensor, found, expected in zip(outputs_of(name, case), inside, outside, strict=True):
            np.testing.assert_array_equal(found, expected, err_msg=f"{case.name}: {tensor}")
