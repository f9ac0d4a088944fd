"""Weights are arrays over one mapping of their file, and equal those that onnx reads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.bundles.cache import BundleCache
from tightbeam.deploy import Bundle, BundleError, Runner
from tightbeam.deploy.bundle.manifest import GraphEntry
from tightbeam.deploy.bundle.operators import operators_version
from tightbeam.deploy.bundle.protobuf import content, fields, varint
from tightbeam.deploy.runtimes._mapped_weights import MappedWeights
from tightbeam.deploy.runtimes.process.memory import _nodes
from tightbeam.graph_passes import PRESETS


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_all_weights_are_the_same_mapping_for_both_graphs(bundles: BundleCache, precision: str) -> None:
    bundle = Bundle.load(bundles("dedup", "bart", precision=precision))
    weights = MappedWeights(bundle)
    starts, found = set(), {}
    for graph in (bundle.manifest.encoder, bundle.manifest.decoder):
        found = weights.of(graph)
        stored = onnx.load(bundle.file(graph), load_external_data=False).graph.initializer
        assert found.keys() == {tensor.name for tensor in stored if tensor.data_location == tensor.EXTERNAL}
        offsets = {tensor.name: {entry.key: entry.value for entry in tensor.external_data} for tensor in stored}
        model = onnx.load(bundle.file(graph))
        expected = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        for name, array in found.items():
            assert not array.flags.writeable
            assert array.dtype == expected[name].dtype
            np.testing.assert_array_equal(array, expected[name])
            starts.add(array.ctypes.data - int(offsets[name]["offset"]))
    assert len(starts) == 1
    before = {name: array.copy() for name, array in found.items()}
    weights.release_pages()
    for name, array in found.items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("variant", PRESETS)
def test_a_tied_embedding_is_the_same_memory_for_both_graphs(bundles: BundleCache, variant: str) -> None:
    bundle = Bundle.load(bundles(variant, "bart"))
    sizes, weights = bundle.manifest.sizes, MappedWeights(bundle)
    encoder, decoder = (
        {a.ctypes.data for a in weights.of(graph).values() if a.shape == (-(-sizes.vocabulary // 16), sizes.D, 16)}
        for graph in (bundle.manifest.encoder, bundle.manifest.decoder)
    )
    assert len(encoder) == 1 and encoder <= decoder  # where other tiles have the same shape


READS_SMAPS = """
import json, re, sys
import numpy as np
from tightbeam.deploy import Runner

runner = Runner.load(sys.argv[1], threads=1)
runner.generate(np.array([[5, 6, 7]]), max_new_tokens=4)
found, name = [], ""
for line in open("/proc/self/smaps", encoding="utf-8"):
    head = re.match(r"[0-9a-f]+-[0-9a-f]+ (\\S+) \\S+ \\S+ \\d+ *(.*)", line)
    if head:
        name = head[2].strip()
        found += [{"permissions": head[1]}] if name.endswith("weights.safetensors") else []
    elif name.endswith("weights.safetensors"):
        key, value = line.split(":", 1)
        found[-1][key] = value.strip()
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_mapped_weights_are_the_pages_of_the_file(bundles: BundleCache) -> None:
    """The process maps the file once, and has no page of it that is its own."""
    folder = bundles("dedup", "bart", precision="int8")
    command = [sys.executable, "-P", "-c", READS_SMAPS, str(folder)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1
    assert found[0]["permissions"].startswith("r--")
    assert found[0]["Anonymous"] == found[0]["Private_Dirty"] == "0 kB"
    assert int(found[0]["Rss"].split()[0]) > 0


@pytest.fixture(scope="module")
def damaged(bundles: BundleCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(bundles("dedup", "bart"), tmp_path_factory.mktemp("damaged") / "bundle"))


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_graph_has_no_weights_or_valid_ones(bundles: BundleCache, damaged: Path, data: st.DataObject) -> None:
    """Nothing is read outside the file. The runtime reports the damage, or a line says where a weight should be."""
    whole = (bundles("dedup", "bart") / "decoder.onnx").read_bytes()
    kind = data.draw(st.sampled_from(["cut", "change", "noise"]))
    if kind == "cut":
        model = whole[: data.draw(st.integers(0, len(whole)))]
    elif kind == "noise":
        model = data.draw(st.binary(max_size=200))
    else:
        model = bytearray(whole)
        for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=20)):
            model[place] = data.draw(st.integers(0, 255))
    (damaged / "decoder.onnx").write_bytes(model)
    bundle = Bundle(damaged, Bundle.load(bundles("dedup", "bart"), verify=False).manifest)
    try:
        weights = MappedWeights(bundle).of(bundle.manifest.decoder)
    except BundleError as error:
        assert str(error).isprintable()
        return
    for array in weights.values():
        array.tobytes()  # inside the mapping, else the process would be gone


def with_weight(folder: Path, offset: str, dims: list[int]) -> None:
    """Replace both graphs by one weight each."""
    tensor = onnx.TensorProto(name="w", data_type=1, dims=dims, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in {"location": "weights.safetensors", "offset": offset}.items():
        tensor.external_data.add(key=key, value=value)
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [tensor]))
    for file in ("encoder.onnx", "decoder.onnx"):
        (folder / file).write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("offset", "dims"),
    [
        *[("-64", [4]), ("0", [2**62, 4]), ("1" + "0" * 30, [4]), ("9" * 4000, [4]), ("0", [10**9]), ("0", [-4])],
        *[("9" * 4300, [1]), ("-" + "9" * 4300, [1]), ("0", [2**62] * 32)],
    ],
)
def test_a_weight_outside_the_file_is_an_error(
    bundles: BundleCache, damaged: Path, offset: str, dims: list[int]
) -> None:
    with_weight(damaged, offset, dims)
    bundle = Bundle(damaged, Bundle.load(bundles("dedup", "bart"), verify=False).manifest)
    for graph in (bundle.manifest.encoder, bundle.manifest.decoder):
        with pytest.raises(BundleError, match=r"has its weight 'w' at bytes .* of weights.safetensors, which has "):
            MappedWeights(bundle).of(graph)


@pytest.mark.parametrize(
    ("offset", "dims"), [("x", [4]), ("2", [4]), ("0", [0]), ("0", [4, *[1] * 32]), ("0", [2**62] * 300)]
)
def test_a_weight_that_cannot_be_mapped_is_left_to_the_runtime(
    bundles: BundleCache, damaged: Path, offset: str, dims: list[int]
) -> None:
    with_weight(damaged, offset, dims)
    bundle = Bundle(damaged, Bundle.load(bundles("dedup", "bart"), verify=False).manifest)
    assert MappedWeights(bundle).of(bundle.manifest.decoder) == {}


@pytest.mark.parametrize("graphs", [("encoder",), ("decoder",), ("encoder", "decoder")])
def test_a_failed_load_leaves_no_thread(bundles: BundleCache, tmp_path: Path, graphs: tuple[str, ...]) -> None:
    """The error of the encoder is raised if both graphs have one."""
    folder = Path(shutil.copytree(bundles("dedup", "bart"), tmp_path / "bundle"))
    manifest = json.loads((folder / "bundle.json").read_text("utf-8"))
    for graph in graphs:
        model = onnx.load(folder / f"{graph}.onnx", load_external_data=False)
        model.graph.node[0].op_type = "Unheard"
        (folder / f"{graph}.onnx").write_bytes(model.SerializeToString())
        manifest[graph]["bytes"] = (folder / f"{graph}.onnx").stat().st_size
    (folder / "bundle.json").write_text(json.dumps(manifest), "utf-8")
    before = threading.active_count()
    with pytest.raises(BundleError, match=rf"cannot load .*{graphs[0]}\.onnx: .*Unheard"):
        Runner.load(folder, threads=1, verify=False)
    assert threading.active_count() == before


def test_a_file_that_is_replaced_while_it_is_loaded_is_refused(
    bundles: BundleCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime may have read some of its weights by the path."""
    folder = Path(shutil.copytree(bundles("dedup", "bart"), tmp_path / "bundle"))
    of = MappedWeights.of

    def replaced(weights: MappedWeights, graph: GraphEntry) -> object:
        if graph.file == "encoder.onnx":
            shutil.copy(folder / "weights.safetensors", tmp_path / "new")
            os.replace(tmp_path / "new", folder / "weights.safetensors")
        return of(weights, graph)

    monkeypatch.setattr(MappedWeights, "of", replaced)
    with pytest.raises(BundleError, match=r"weights\.safetensors was replaced while it was loaded; load the bundle"):
        Runner.load(folder, threads=1)


def test_integers_of_protobuf() -> None:
    assert varint(memoryview(b"\xac\x02\x07"), 0) == (300, 2)
    assert list(fields(memoryview(b"\x08\x96\x01\x12\x02hi\x25abcd"))) == [(1, 150), (2, b"hi"), (4, b"abcd")]
    with pytest.raises(ValueError, match="beyond its message"):
        list(fields(memoryview(b"\x12\x05hi")))
    assert content(memoryview(b"hi")) == b"hi"
    with pytest.raises(TypeError, match="a number"):  # bytes(1 << 40) asks for a terabyte
        content(1 << 40)
    with pytest.raises(ValueError, match="too many bytes"):
        varint(memoryview(b"\x80" * 11), 0)


def test_a_graph_with_numbers_for_names_is_a_damaged_one(bundles: BundleCache, tmp_path: Path) -> None:
    """A length in place of a name is not made into as many zeros."""
    folder = Path(shutil.copytree(bundles("dedup"), tmp_path / "bundle"))
    bundle = Bundle.load(folder)
    large = b"\x80\x80\x80\x80\x80\x20"  # the varint 1 << 40
    opset, node = b"\x08" + large, b"\x20" + large
    graph = b"\x0a" + bytes([len(node)]) + node
    data = b"\x42" + bytes([len(opset)]) + opset + b"\x3a" + bytes([len(graph)]) + graph
    bundle.file(bundle.manifest.decoder).write_bytes(data)
    assert operators_version(bundle) is None
    assert list(_nodes(bundle, bundle.manifest.decoder)) == []
