"""Damaged int8 bundles whose checksums were made to fit: one line of error, never an answer."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from support.bundles.cache import BundleCache
from tightbeam.deploy import Runner
from tightbeam.deploy.errors import BundleError

FILES = {"encoder": "encoder.onnx", "decoder": "decoder.onnx", "weights": "weights.safetensors"}
PRODUCTS = ("QuantizedMatMul", "DynamicQuantizeMatMul")


@pytest.fixture
def copy(bundles: BundleCache, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundles("dedup", precision="int8"), tmp_path / "bundle"))


def rechecked(folder: Path) -> None:
    """Give the manifest the sizes and checksums that the files have now."""
    path = folder / "bundle.json"
    data = json.loads(path.read_text("utf-8"))
    for name, file in FILES.items():
        content = (folder / file).read_bytes()
        data[name].update(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    path.write_text(json.dumps(data), "utf-8")


def refused(folder: Path) -> str:
    with pytest.raises(BundleError) as caught:
        Runner.load(folder, threads=1).generate([[5, 6, 7, 8]], num_beams=2, max_new_tokens=4)
    message = str(caught.value)
    assert message.isprintable(), message
    return message


def constant_of(model: onnx.ModelProto, place: str) -> onnx.TensorProto:
    """The tiles or the scale of the first product that has a matrix of its own."""
    node = next(node for node in model.graph.node if node.op_type in PRODUCTS)
    given = [*node.input][1 if node.op_type == "DynamicQuantizeMatMul" else 2 :]
    name = given[("tiles", "scale").index(place)]
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def edited(folder: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    path = folder / FILES["decoder"]
    model = onnx.load(path, load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())
    rechecked(folder)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_truncated_weights(copy: Path, share: float) -> None:
    path = copy / FILES["weights"]
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert str(copy) in refused(copy)
    rechecked(copy)
    assert str(copy) in refused(copy)


@pytest.mark.parametrize("dtype", ["INT8", "FLOAT", "INT32"])
@pytest.mark.parametrize("place", ["tiles", "scale"])
def test_wrong_type(copy: Path, place: str, dtype: str) -> None:
    if (place, dtype) == ("scale", "FLOAT"):
        dtype = "UINT8"

    def change(model: onnx.ModelProto) -> None:
        constant_of(model, place).data_type = onnx.TensorProto.DataType.Value(dtype)

    edited(copy, change)
    refused(copy)


def swap(dims: list[int]) -> list[int]:
    return [dims[1], dims[0], *dims[2:]]


def flat(dims: list[int]) -> list[int]:
    return [int(np.prod(dims))]


def halve(dims: list[int]) -> list[int]:
    return [dims[0], dims[1], 32, 2] if len(dims) == 4 else [2, dims[1] // 2]


@pytest.mark.parametrize("shape", [swap, flat, halve])
@pytest.mark.parametrize("place", ["tiles", "scale"])
def test_wrong_shape(copy: Path, place: str, shape: Callable[[list[int]], list[int]]) -> None:
    def change(model: onnx.ModelProto) -> None:
        tensor = constant_of(model, place)
        dims = shape(list(tensor.dims))
        assert dims != list(tensor.dims)
        tensor.ClearField("dims")
        tensor.dims.extend(dims)

    edited(copy, change)
    refused(copy)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scales_that_are_no_numbers(copy: Path, bad: float) -> None:
    """All products are poisoned by them, and so the scores: no answer is made of those."""
    model = onnx.load(copy / FILES["decoder"], load_external_data=False)
    tensor = constant_of(model, "scale")
    where = {entry.key: entry.value for entry in tensor.external_data}
    path = copy / FILES["weights"]
    content = bytearray(path.read_bytes())
    start, length = int(where["offset"]), int(where["length"])
    content[start : start + length] = np.full(length // 4, bad, np.float32).tobytes()
    path.write_bytes(content)
    rechecked(copy)
    assert "NaN or infinite" in refused(copy)


@pytest.mark.parametrize("place", ["tiles", "scale"])
def test_a_missing_constant(copy: Path, place: str) -> None:
    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.remove(constant_of(model, place))

    edited(copy, change)
    assert str(copy) in refused(copy)


ENTRY: dict[str, Any] = {
    **{"name": "decoder.x", "shape": [4, 4], "embedding": False, "int8": 0.01},
    **{"fp16": 0.0002, "fp32": 1e-7, "allowed": 0.03, "kept": "int8", "reason": ""},
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"int8": 0.5, "w8a16": 0.02, "kept": "w8a16"}, ""),
        ({"int8": 0.5, "blocks": 0.02, "kept": "blocks"}, ""),
        ({"int8": 0.5, "kept": "fp32"}, ""),
        ({"int8": 0.5}, "'decoder.x' is kept as int8, whose error 0.5 is not allowed"),
        ({"int8": None}, "'decoder.x' is kept as int8, whose error None is not allowed"),
        ({"int8": -1.0}, "is not allowed"),
        ({"kept": "w8a16"}, "'decoder.x' is kept as w8a16, whose error None is not allowed"),
        ({"w4a16": 0.15, "allowed": 0.2, "kept": "w4a16"}, ""),
        ({"w4a16": 0.15, "kept": "w4a16"}, "'decoder.x' is kept as w4a16, whose error 0.15 is not allowed"),
        ({"kept": "int4"}, "kept"),
        ({"allowed": float("nan")}, "Out of range float values"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_table_of_products_that_contradicts_itself(copy: Path, changes: dict[str, Any], said: str) -> None:
    path = copy / "bundle.json"
    data = json.loads(path.read_text("utf-8"))
    data["quantized"] = [{**ENTRY, **changes}]
    path.write_text(json.dumps(data), "utf-8")
    if not said:
        Runner.load(copy, threads=1)
        return
    assert said in refused(copy)


def test_a_table_of_products_in_another_precision(bundles: BundleCache, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundles("dedup"), tmp_path / "bundle"))
    path = folder / "bundle.json"
    data = json.loads(path.read_text("utf-8"))
    data["quantized"] = [ENTRY]
    path.write_text(json.dumps(data), "utf-8")
    assert "has a table of quantised products, the bundle is in fp32" in refused(folder)
