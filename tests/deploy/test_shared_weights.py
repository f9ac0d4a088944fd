"""Tied weights are read from the graph files without onnx, and equal those that onnx reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.bundles import BundleCache
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.bundle.protobuf import fields, varint
from tightbeam.deploy.runtimes._shared_weights import TiedWeights
from tightbeam.graph_passes import PRESETS


@pytest.mark.parametrize("variant", PRESETS)
def test_the_embedding_is_the_same_memory_for_both_graphs(bundles: BundleCache, variant: str) -> None:
    bundle = Bundle.load(bundles(variant, "bart"))
    sizes = bundle.manifest.sizes
    tied = TiedWeights(bundle)
    places = []
    for graph in (bundle.manifest.encoder, bundle.manifest.decoder):
        found = tied.by_graph[graph.file]
        model = onnx.load(bundle.file(graph))
        expected = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        for name, array in found.items():
            assert array.dtype == expected[name].dtype
            np.testing.assert_array_equal(array, expected[name])
        places.append({array.ctypes.data for array in found.values()})
        assert (sizes.vocabulary, sizes.D) in {array.shape for array in found.values()}
    assert places[0] == places[1]
    before = {name: array.copy() for name, array in found.items()}
    tied.release_pages()
    for name, array in found.items():
        np.testing.assert_array_equal(array, before[name])


def test_untied_weights_are_left_to_the_runtime(bundles: BundleCache) -> None:
    bundle = Bundle.load(bundles("dedup", "bart", tie_word_embeddings=False))
    tied = TiedWeights(bundle)
    sizes = bundle.manifest.sizes
    assert all(
        (sizes.D, sizes.vocabulary) not in {a.shape for a in arrays.values()} for arrays in tied.by_graph.values()
    )
    ids = np.full((1, 4), 7)
    Runner.load(bundle.path, threads=1).generate(ids, num_beams=2, max_new_tokens=3)


@pytest.fixture(scope="module")
def damaged(bundles: BundleCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(bundles("dedup", "bart"), tmp_path_factory.mktemp("damaged") / "bundle"))


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_graph_has_no_tied_weights_or_valid_ones(
    bundles: BundleCache, damaged: Path, data: st.DataObject
) -> None:
    """No content is an error, or is read outside the file. The runtime reports the damage."""
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
    tied = TiedWeights(Bundle(damaged, Bundle.load(bundles("dedup", "bart"), verify=False).manifest))
    for arrays in tied.by_graph.values():
        for array in arrays.values():
            array.tobytes()  # inside the mapping, else the process would be gone


@pytest.mark.parametrize(
    ("offset", "dims"),
    [("-64", [4]), ("0", [2**62, 4]), ("1" + "0" * 30, [4]), ("x", [4]), ("0", [10**9]), ("2", [4]), ("0", [-4])],
)
def test_offsets_outside_the_file_are_ignored(
    bundles: BundleCache, damaged: Path, offset: str, dims: list[int]
) -> None:
    tensor = onnx.TensorProto(name="w", data_type=1, dims=dims, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in {"location": "weights.safetensors", "offset": offset}.items():
        tensor.external_data.add(key=key, value=value)
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [], [tensor]))
    for file in ("encoder.onnx", "decoder.onnx"):
        (damaged / file).write_bytes(model.SerializeToString())
    manifest = Bundle.load(bundles("dedup", "bart"), verify=False).manifest
    assert TiedWeights(Bundle(damaged, manifest)).by_graph == {"encoder.onnx": {}, "decoder.onnx": {}}


def test_integers_of_protobuf() -> None:
    assert varint(memoryview(b"\xac\x02\x07"), 0) == (300, 2)
    assert list(fields(memoryview(b"\x08\x96\x01\x12\x02hi\x25abcd"))) == [(1, 150), (2, b"hi"), (4, b"abcd")]
    with pytest.raises(ValueError, match="beyond its message"):
        list(fields(memoryview(b"\x12\x05hi")))
