"""The bundle folder: its contents, and refusal of damaged or hostile files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file

from support.bundles.cache import BundleCache
from tightbeam.deploy import Bundle, BundleError, GenerationError, InputError, Runner
from tightbeam.deploy.bundle.manifest import FORMAT_VERSION
from tightbeam.deploy.bundle.reader import manifest_digest
from tightbeam.export.writing.weights import plan_weights, write_weights
from tightbeam.plugins.ops.linear.layout import tiled

Change = Callable[[dict[str, Any]], object]
FILES = ("encoder.onnx", "decoder.onnx", "weights.safetensors", "tokenizer/tokenizer.json")
GRAPHS = ("encoder", "decoder")


@pytest.fixture(scope="module")
def bundle(bundles: BundleCache) -> Path:
    """A whole bundle with a tokenizer, shared: change only a copy."""
    return bundles("el", tokenizer=True)


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "bundle"))


def edit(folder: Path, change: Change) -> None:
    """Change the manifest."""
    path = folder / "bundle.json"
    data = json.loads(path.read_text("utf-8"))
    change(data)
    path.write_text(json.dumps(data), "utf-8")


def put(*keys: str | int, value: object) -> Change:
    def change(data: dict[str, Any]) -> None:
        place: Any = data
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


def refused(folder: Path, *parts: str, verify: bool = True) -> None:
    """The bundle is refused, by a line that holds the parts and no control character."""
    with pytest.raises(BundleError) as caught:
        Runner.load(folder, threads=1, verify=verify).wait_for_weights()
    message = str(caught.value)
    assert message.isprintable(), message
    for part in parts:
        assert part in message


def rechecked(folder: Path, graph: str) -> None:
    """Give the manifest the size and checksum that a graph has now, as an attacker would."""
    content = (folder / f"{graph}.onnx").read_bytes()
    edit(folder, lambda data: data[graph].update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest()))


# Contents


def test_a_written_bundle_loads(bundle: Path) -> None:
    manifest = Bundle.load(bundle).manifest
    assert (manifest.format_version, manifest.variant, manifest.precision) == (FORMAT_VERSION, "el", "fp32")
    assert {entry.file for entry in manifest.files()} >= set(FILES)
    on_disk = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    assert on_disk == {entry.file for entry in manifest.files()} | {"bundle.json"}
    assert Runner.load(bundle).generate_text(["a small town"], max_new_tokens=4)


def test_weights_are_an_aligned_safetensors_file(bundle: Path) -> None:
    path = bundle / "weights.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert (8 + length) % 64 == 0
    tensors = load_file(path)
    assert header.keys() == tensors.keys()
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        assert tensors[name].tobytes() == content[8 + length + start : 8 + length + end]
        assert start % 64 == 0 or tensors[name].nbytes % 64


def test_every_weight_is_stored_once(bundles: BundleCache, bundle: Path) -> None:
    tensors = load_file(bundle / "weights.safetensors")
    distinct = {(array.dtype.name, array.shape, array.tobytes()) for array in tensors.values()}
    assert len(distinct) == len(tensors)

    checkpoint, _ = bundles.trace(tokenizer=True)
    embedding = checkpoint.model.get_input_embeddings().weight.detach().numpy()
    tiles = tiled(embedding.T)  # for look-ups and for the logits
    assert sum(array.shape == tiles.shape and np.array_equal(array, tiles) for array in tensors.values()) == 1
    assert not any(array.shape == embedding.shape for array in tensors.values())
    matrices = {weight.data_ptr(): weight.nbytes for weight in checkpoint.model.parameters() if weight.ndim == 2}
    stored = sum(array.nbytes for array in tensors.values())
    filled = sum(array[0].nbytes for array in tensors.values() if array.ndim == 3)  # last tiles may be half empty
    assert -0.01 * stored < stored - sum(matrices.values()) < 0.01 * stored + filled


@pytest.mark.parametrize("variant", ["el", "dedup", "baseline"])
def test_graphs_hold_no_weights_and_point_into_the_one_file(bundles: BundleCache, variant: str) -> None:
    folder = bundles(variant, tokenizer=True)
    content = (folder / "weights.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    names = json.loads(content[8:start])
    ranges = {(start + low, high - low) for low, high in (entry["data_offsets"] for entry in names.values())}
    used = set()
    for graph in GRAPHS:
        model = onnx.load(folder / f"{graph}.onnx", load_external_data=False)
        constants = [a.t for node in model.graph.node for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]
        for tensor in (*model.graph.initializer, *constants):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                where = {entry.key: entry.value for entry in tensor.external_data}
                assert where["location"] == "weights.safetensors"
                used.add((int(where["offset"]), int(where["length"])))
            else:
                assert onnx.numpy_helper.to_array(tensor).nbytes <= 256
    assert used == ranges


def test_equal_weights_share_an_offset(tmp_path: Path) -> None:
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    broken = np.array([np.nan, 1], np.float32)
    plan = plan_weights(
        {
            "first": base,
            "equal": base.copy(),
            "strided": np.ascontiguousarray(base.T).T,
            "reshaped": base.reshape(4, 3),
            "integers": base.astype(np.int32),
            "zero": np.array(0.0, np.float32),
            "negative zero": np.array(-0.0, np.float32),
            "nan": broken,
            "nan again": broken.copy(),
            "last differs": np.concatenate([base.reshape(-1)[:-1], [99]]).astype(np.float32).reshape(3, 4),
        }
    )
    assert plan.offsets["first"] == plan.offsets["equal"] == plan.offsets["strided"]
    assert plan.offsets["nan"] == plan.offsets["nan again"]
    assert len(set(plan.offsets.values())) == 7
    write_weights(tmp_path / "w", plan)
    tensors = load_file(tmp_path / "w")
    np.testing.assert_array_equal(tensors["first"], base)
    assert np.signbit(tensors["negative zero"])


# Damage


@pytest.mark.parametrize("file", [*FILES, "bundle.json"])
def test_missing_file(copy: Path, file: str) -> None:
    (copy / file).unlink()
    refused(copy, file)


@pytest.mark.parametrize("file", FILES)
def test_truncated_file(copy: Path, file: str) -> None:
    os.truncate(copy / file, (copy / file).stat().st_size - 1)
    refused(copy, file, "bytes, expected", "export the model again")
    refused(copy, file, "bytes, expected", verify=False)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_one_changed_byte_is_refused(copy: Path, file: str, place: float) -> None:
    content = bytearray((copy / file).read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    (copy / file).write_bytes(content)
    refused(copy, file, "SHA-256", "export the model again")


def test_without_verify_only_the_checksums_are_skipped(copy: Path) -> None:
    with (copy / "weights.safetensors").open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\x01")
    refused(copy, "SHA-256")
    assert Runner.load(copy, verify=False).generate(np.array([[5, 2]]), max_new_tokens=2).sequences.shape[0] == 1
    edit(copy, put("decoder", "file", value="../decoder.onnx"))
    refused(copy, "../decoder.onnx", verify=False)


def test_an_expected_digest_of_the_manifest(copy: Path) -> None:
    """Who can change a file can change its checksum in bundle.json, but not a digest that the caller has."""
    digest = hashlib.sha256((copy / "bundle.json").read_bytes()).hexdigest()
    assert manifest_digest(copy) == digest
    for given in (digest, digest.upper()):
        Runner.load(copy, threads=1, manifest_sha256=given)
    (copy / "tokenizer" / "tokenizer.json").write_bytes(b"{}")
    entry = {"file": "tokenizer/tokenizer.json", "bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    names = [file["file"] for file in json.loads((copy / "bundle.json").read_text("utf-8"))["tokenizer"]["files"]]
    edit(copy, put("tokenizer", "files", names.index(entry["file"]), value=entry))
    said = (
        rf"bundle.json has the SHA-256 {manifest_digest(copy)}, expected {digest}: it is another bundle, or was changed"
    )
    with pytest.raises(BundleError, match=said):
        Bundle.load(copy, manifest_sha256=digest)
    Bundle.load(copy, manifest_sha256=manifest_digest(copy))
    with pytest.raises(InputError, match=r"^manifest_sha256 is 'abc', expected 64 hexadecimal digits; [^\n]+$"):
        Bundle.load(copy, manifest_sha256="abc")


def test_a_file_that_cannot_be_read_is_named(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tightbeam.deploy.bundle.reader._sha256", fail)
    refused(copy, "encoder.onnx", "Permission denied")


def test_a_folder_in_place_of_a_file(copy: Path) -> None:
    (copy / "encoder.onnx").unlink()
    (copy / "encoder.onnx").mkdir()
    refused(copy, "encoder.onnx is missing")


def test_a_bundle_rewritten_as_format_1_is_read(copy: Path) -> None:
    """Format 2 adds the provenance."""

    def older(data: dict[str, Any]) -> None:
        data["format_version"] = 1
        del data["provenance"]

    before = Runner.load(copy)
    assert before.manifest.provenance is not None
    edit(copy, older)
    after = Runner.load(copy)
    assert (after.manifest.format_version, after.manifest.provenance) == (1, None)
    ids = np.array([[5, 6, 2]])
    assert after.generate(ids).sequences.tolist() == before.generate(ids).sequences.tolist()


def test_folders_that_are_not_bundles(tmp_path: Path) -> None:
    refused(tmp_path, "has no bundle.json", "export-model")
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text("{}")
    refused(tmp_path / "checkpoint", "is a checkpoint, not a bundle; export it first: export-model ")
    (tmp_path / "file").write_text("{}")
    refused(tmp_path / "file", "is not a folder")
    refused(tmp_path / "missing", "is not a folder")
    refused(tmp_path / ("n" * 300), "cannot be read")


def test_a_file_beside_the_tokenizer_is_refused(copy: Path) -> None:
    (copy / "tokenizer" / "added_tokens.json").write_text("{}")
    refused(copy, "tokenizer/added_tokens.json", "remove it")


# The manifest

MANIFESTS: dict[str, tuple[Change, str]] = {
    "newer": (put("format_version", value=FORMAT_VERSION + 1), "upgrade Tightbeam"),
    "version 0": (put("format_version", value=0), "format_version 0"),
    "version true": (put("format_version", value=True), "format_version True"),
    "version text": (put("format_version", value="1"), "format_version '1'"),
    "version 1.0": (put("format_version", value=1.0), "format_version 1.0"),
    "version null": (put("format_version", value=None), "format_version None"),
    "version huge": (put("format_version", value=10**3000), "upgrade Tightbeam"),
    "no version": (lambda data: data.pop("format_version"), "format_version None"),
    "no weights": (lambda data: data.pop("weights"), "weights: Field required"),
    "extra": (put("surprise", value=1), "surprise: Extra inputs"),
    "extra of odd signs": (put("a\x1eb\n" + "c" * 10**6, value=1), r"'a\x1eb\nccc"),
    "extra inside": (put("encoder", "surprise", value=1), "encoder.surprise: Extra inputs"),
    "text for a size": (put("encoder", "bytes", value="12"), "encoder.bytes"),
    "negative size": (put("encoder", "bytes", value=-1), "encoder.bytes"),
    "huge size": (put("encoder", "bytes", value=10**3000), "encoder.bytes"),
    "huge model": (put("sizes", "max_source", value=10**30), "sizes.max_source"),
    "no model": (put("sizes", "D", value=0), "sizes.D"),
    "list for text": (put("model", value=[]), "model"),
    "precision": (put("precision", value="fp64"), "precision"),
    "bfloat16": (put("precision", value="bf16"), "precision"),
    "error of a precision": (put("precision_error", value={"error": 0.1, "steps": "4"}), "precision_error.steps"),
    "kind": (put("cache_states", 0, "kind", value="pickle"), "cache_states.0.kind"),
    "not a number": (put("generation", "length_penalty", value=float("nan")), "not JSON"),
    "infinite": (put("generation", "length_penalty", value=float("inf")), "not JSON"),
    "half a character": (put("model", value="\ud800"), "JSON"),
    "layers": (lambda data: data["layers"].pop(), "2 layers"),
    "state of no input": (put("cache_states", 0, "input", value="nothing"), "cache state"),
    "state of another shape": (put("cache_states", 0, "shape", value=[10**9, 10**9]), "cache state"),
    "swapped graphs": (lambda data: data.update(encoder=data["decoder"], decoder=data["encoder"]), "cache state"),
    "no inputs": (put("encoder", "inputs", value=[]), "other inputs or outputs"),
    "no outputs": (put("encoder", "outputs", value=[]), "other inputs or outputs"),
    "no candidates": (put("decoder", "outputs", value=[]), "cache state"),
    "no tokenizer file": (put("tokenizer", "files", value=[]), "tokenizer/tokenizer.json"),
    "control characters": (put("encoder", "file", value="a\n\x1b[2J"), r"a\n\x1b[2J"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_that_is_wrong(copy: Path, name: str) -> None:
    change, part = MANIFESTS[name]
    edit(copy, change)
    refused(copy, part, verify=name not in ("newer", "version 0"))


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", '"x"', "[" * 200_000, '{"format_version": 1, "x": ' + "9" * 5000 + "}", "\ufeff{}"],
    ids=["empty", "cut", "null", "list", "text", "nested", "long number", "byte order mark"],
)
def test_manifest_that_is_not_a_json_object(copy: Path, text: str) -> None:
    (copy / "bundle.json").write_text(text, "utf-8")
    refused(copy, "bundle.json", "export the model again")


@pytest.mark.parametrize("depth", [150, 900, 100_000])
def test_manifest_nested_deeply(copy: Path, depth: int) -> None:
    path = copy / "bundle.json"
    nested = "[" * depth + "]" * depth
    path.write_text(path.read_text("utf-8").replace('"generation": {', '"generation": {"top_k": ' + nested + ","))
    if depth > 150:
        refused(copy, "bundle.json")
    else:
        assert Bundle.load(copy)


def test_manifest_that_would_take_seconds_to_read(copy: Path) -> None:
    """It is valid JSON, and as long as a fuzzer made it."""
    with (copy / "bundle.json").open("ab") as file:
        file.write(b" " * (17 << 20))
    with pytest.raises(BundleError, match=r"bundle\.json has more than 16 MiB, which no export writes"):
        Bundle.load(copy)


def test_manifest_not_utf8(copy: Path) -> None:
    path = copy / "bundle.json"
    path.write_bytes(b"\xff" + path.read_bytes())
    refused(copy, "bundle.json is not JSON")


def places(data: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if at:
        yield at
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from places(value, (*at, key))


def test_no_value_in_the_manifest_raises_anything_else(copy: Path) -> None:
    original = json.loads((copy / "bundle.json").read_text("utf-8"))
    passed = 0
    values = (None, -1, 2**40, 0.5, "x", "../x", [], {}, [[]], True)
    for index, place in enumerate(places(original)):
        for value in (values[index % 10], values[(index * 7 + 3) % 10]):  # all ten at every position take half a minute
            data = json.loads(json.dumps(original))
            put(*place, value=value)(data)
            (copy / "bundle.json").write_text(json.dumps(data), "utf-8")
            try:
                Bundle.load(copy, verify=False)
                if place[0] in ("model", "made_by", "family", "layers", "passes", "parity"):
                    continue  # a run does not read these
                passed += 1
                Runner.load(copy, threads=1, verify=False).generate(np.array([[5, 2]]), max_new_tokens=2)
            except (BundleError, GenerationError, InputError) as error:
                assert "\n" not in str(error)
    assert passed > 20


# Paths outside the folder

OUTSIDE = {
    "absolute": lambda out, file: str(out / file),
    "parent": lambda out, file: f"../outside/{file}",
    "in and out": lambda out, file: f"tokenizer/../../outside/{file}",
    "link": lambda out, file: f"link/{file}",
    "NUL": lambda out, file: f"\0{file}",
}


@pytest.fixture
def outside(copy: Path) -> Path:
    """A twin of the bundle beside it, and a link to it inside."""
    twin = copy.parent / "outside"
    shutil.copytree(copy, twin)
    (copy / "link").symlink_to(twin)
    return twin


@pytest.mark.parametrize("way", OUTSIDE)
@pytest.mark.parametrize("keys", [("encoder",), ("decoder",), ("weights",), ("tokenizer", "files", 0)], ids=str)
def test_file_outside(copy: Path, outside: Path, keys: tuple[str | int, ...], way: str) -> None:
    entry = json.loads((copy / "bundle.json").read_text("utf-8"))
    for key in keys:
        entry = entry[key]
    edit(copy, put(*keys, "file", value=OUTSIDE[way](outside, entry["file"])))
    refused(copy, "not a path inside the bundle")
    refused(copy, "not a path inside the bundle", verify=False)


@pytest.mark.parametrize("way", OUTSIDE)
def test_tokenizer_folder_outside(copy: Path, outside: Path, way: str) -> None:
    edit(copy, put("tokenizer", "folder", value=OUTSIDE[way](outside, "tokenizer")))
    refused(copy, "not a path inside the bundle")


@pytest.mark.parametrize("file", [*FILES, "bundle.json"])
def test_file_that_is_a_link_to_outside(copy: Path, outside: Path, file: str) -> None:
    (copy / file).unlink()
    (copy / file).symlink_to(outside / file)
    refused(copy, "not a path inside the bundle")


def test_link_inside_the_folder_is_fine(copy: Path) -> None:
    (copy / "encoder.onnx").rename(copy / "real.onnx")
    (copy / "encoder.onnx").symlink_to("real.onnx")
    assert Bundle.load(copy)


def test_circular_links(copy: Path) -> None:
    (copy / "encoder.onnx").unlink()
    (copy / "encoder.onnx").symlink_to("encoder.onnx")
    refused(copy, "encoder.onnx")


@pytest.mark.parametrize("way", [*OUTSIDE, "device"])
@pytest.mark.parametrize("graph", GRAPHS)
def test_external_data_outside(copy: Path, outside: Path, graph: str, way: str) -> None:
    location = "/dev/zero" if way == "device" else OUTSIDE[way](outside, "weights.safetensors")
    model = onnx.load(copy / f"{graph}.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = location if entry.key == "location" else entry.value
    (copy / f"{graph}.onnx").write_bytes(model.SerializeToString())
    rechecked(copy, graph)
    refused(copy, f"{graph}.onnx", "ONNX Runtime")


@pytest.mark.parametrize("offset", ["-64", "999999999999", "x", "9" * 30])
def test_external_data_beyond_the_file(copy: Path, offset: str) -> None:
    model = onnx.load(copy / "encoder.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = offset if entry.key == "offset" else entry.value
    (copy / "encoder.onnx").write_bytes(model.SerializeToString())
    rechecked(copy, "encoder")
    refused(copy, "encoder.onnx", "ONNX Runtime" if offset == "x" else "of weights.safetensors, which has")


def test_invalid_graph(copy: Path) -> None:
    (copy / "decoder.onnx").write_bytes(b"\x08\x07" * 50)
    rechecked(copy, "decoder")
    refused(copy, "decoder.onnx", "ONNX Runtime")


def test_invalid_tokenizer(copy: Path) -> None:
    path = copy / "tokenizer" / "tokenizer.json"
    path.write_text("{}")
    for index, entry in enumerate(json.loads((copy / "bundle.json").read_text("utf-8"))["tokenizer"]["files"]):
        if entry["file"].endswith("tokenizer.json"):
            new = {"bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest(), "file": entry["file"]}
            edit(copy, put("tokenizer", "files", index, value=new))
    refused(copy, "tokenizer", "cannot be read")
