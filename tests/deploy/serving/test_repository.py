"""triton-repo: the files it writes, the settings it refuses, and no partial files after a failure."""

from __future__ import annotations

import ast
import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles import BundleCache
from support.checkpoints import WHISPER_GENERATION
from support.triton_requests import run
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.serving import repository as repository_module
from tightbeam.deploy.serving.command import app
from tightbeam.deploy.serving.config import model_name_of
from tightbeam.deploy.serving.messages import Request, Row

google = pytest.importorskip("google.protobuf.text_format")
json_format = pytest.importorskip("google.protobuf.json_format")
model_config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2")

Command = Callable[..., "Done"]


class Done:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def wrote(self, note: str = "") -> Path:
        """The version's folder; ``note`` begins what is on standard error."""
        assert self.code == 0 and self.err.startswith(note) and bool(self.err) == bool(note), self.err
        return Path(self.out.removeprefix("wrote ").partition("; to try it here")[0])

    def refused(self, *parts: str) -> None:
        """Assert that the command ended with one error line that contains ``parts``."""
        assert self.code == 1 and self.out == ""
        (line,) = self.err.splitlines()
        assert line.startswith("error: ")
        assert all(part in line for part in parts), line


@pytest.fixture
def triton_repo(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: object) -> Done:
        capsys.readouterr()
        code = app([str(argument) for argument in arguments], standalone_mode=False)
        captured = capsys.readouterr()
        return Done(code or 0, captured.out, captured.err)

    return call


@pytest.fixture(scope="module")
def text(bundles: BundleCache, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose folder gives the model its name."""
    return Path(shutil.copytree(bundles("dedup", tokenizer=True), tmp_path_factory.mktemp("text") / "bart-dedup"))


@pytest.fixture(scope="module")
def ids_only(bundles: BundleCache) -> Path:
    return bundles("dedup")


@pytest.fixture(scope="module")
def speech(bundles: BundleCache) -> Path:
    return bundles("dedup", "whisper", generation=WHISPER_GENERATION, tokenizer=True)


@pytest.fixture(scope="module")
def with_engine(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with a folder in place of a TensorRT engine."""
    folder = Path(shutil.copytree(text, tmp_path_factory.mktemp("engine") / "bundle"))
    (folder / "engines" / "mine").mkdir(parents=True)
    (folder / "engines" / "mine" / "engine.json").write_text("{}")
    return folder


def content(folder: Path) -> dict[str, bytes | None]:
    """All files below a folder, by name; folders have no bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def config_of(model: Path) -> dict[str, Any]:
    """The configuration, read with Triton's own protobuf."""
    config = google.Parse((model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    found: dict[str, Any] = json_format.MessageToDict(config, preserving_proto_field_name=True)
    return found


# ---- what is written ----


def test_files_of_a_model(triton_repo: Command, text: Path, tmp_path: Path) -> None:
    version = triton_repo(text, tmp_path / "new" / "models").wrote()
    model = tmp_path / "new" / "models" / "bart-dedup"
    assert version == model / "1"
    assert {path.name for path in model.iterdir()} == {"1", "README.md", "config.pbtxt", "warmup"}
    assert {path.name for path in version.iterdir()} == {"model.py", "bundle"}
    assert list(model.parent.iterdir()) == [model]
    assert (version / "model.py").read_bytes() == Path(repository_module.__file__).with_name("model.py").read_bytes()
    for path in (model, version, version / "bundle"):
        assert path.stat().st_mode & 0o777 == 0o755  # the server may be another user's


def test_the_bundle_is_copied_as_its_manifest_names_it(triton_repo: Command, text: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(text, tmp_path / "bundle"))
    (source / "notes.txt").write_text("not of the bundle")
    (source / "engines").mkdir()
    (source / "engines" / "engine").write_bytes(b"large")
    copied = triton_repo(source, tmp_path / "models").wrote() / "bundle"
    manifest = Bundle.load(copied).manifest
    files = {name for name, data in content(copied).items() if data is not None}
    assert files == {"bundle.json", *(entry.file for entry in manifest.files())}
    assert content(copied) == content(text)
    settings = {"num_beams": 3, "max_new_tokens": 7}
    found, expected = (
        Runner.load(folder, threads=1).generate_text(["a town by the river"], **settings) for folder in (copied, text)
    )
    assert found == expected


def test_model_file_only_calls_the_backend(text: Path) -> None:
    source = Path(repository_module.__file__).with_name("model.py").read_text()
    tree = ast.parse(source)
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.BinOp | ast.If | ast.For | ast.While)]
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported == {"__future__", "typing", "triton_python_backend_utils", "tightbeam.deploy.serving.backend"}


def tensor(name: str, kind: str, *dims: int) -> dict[str, Any]:
    return {"name": name, "data_type": kind, "dims": [str(size) for size in dims]}


def required(name: str, kind: str, *dims: int) -> dict[str, Any]:
    return {**tensor(name, kind, *dims), "allow_ragged_batch": True}


def optional(name: str, kind: str, *dims: int) -> dict[str, Any]:
    return {**required(name, kind, *dims), "optional": True}


LENGTHS = optional("LENGTHS", "TYPE_INT32", 1)
FOUND = [
    tensor("SCORES", "TYPE_FP32", -1),
    tensor("OUTPUT_IDS", "TYPE_INT64", -1, -1),
    tensor("OUTPUT_LENGTHS", "TYPE_INT32", -1),
    tensor("TOKEN_SCORES", "TYPE_FP32", -1, -1),
    tensor("ALTERNATIVE_IDS", "TYPE_INT64", -1, -1, -1),
    tensor("ALTERNATIVE_SCORES", "TYPE_FP32", -1, -1, -1),
]
PLACE = [tensor("INDEX", "TYPE_INT32", 1), tensor("FINISHED", "TYPE_BOOL", 1)]
WORDS = tensor("TEXT", "TYPE_STRING", -1)
INPUTS = {
    "text": [optional("TEXT", "TYPE_STRING", 1), optional("INPUT_IDS", "TYPE_INT64", -1), LENGTHS],
    "ids_only": [required("INPUT_IDS", "TYPE_INT64", -1), LENGTHS],
    "speech": [optional("AUDIO", "TYPE_FP32", -1), optional("AUDIO_FILE", "TYPE_STRING", 1), LENGTHS],
}
OUTPUTS = {"text": [WORDS, *FOUND], "ids_only": FOUND, "speech": [WORDS, *FOUND, tensor("SEGMENTS", "TYPE_STRING", 1)]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", INPUTS)
def test_every_field_of_the_configuration(
    request: pytest.FixtureRequest, triton_repo: Command, tmp_path: Path, kind: str, stream: bool
) -> None:
    source: Path = request.getfixturevalue(kind)
    chosen = ["--name", "a.b-c_1", *(["--stream"] if stream else [])]
    model = triton_repo(source, tmp_path, *chosen).wrote().parent
    found = config_of(model)
    made_by = found["parameters"].pop("made_by")["string_value"]
    assert made_by.startswith("tightbeam ")
    if kind == "speech":
        warm_up = {"AUDIO": {"data_type": "TYPE_FP32", "dims": ["1600"], "zero_data": True}}
    else:
        warm_up = {"INPUT_IDS": {"data_type": "TYPE_INT64", "dims": ["4"], "input_data_file": "warm_up"}}
    assert found == {
        "name": "a.b-c_1",
        "backend": "python",
        "max_batch_size": 16,
        "input": INPUTS[kind],
        "output": [*OUTPUTS[kind], *(PLACE if stream else [])],
        **({"model_transaction_policy": {"decoupled": True}} if stream else {}),
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}],
        "dynamic_batching": {},
        "model_warmup": [{"name": "warm_up", "batch_size": 1, "inputs": warm_up}],
        "parameters": {
            "engine": {"string_value": "onnxruntime"},
            "max_rows": {"string_value": "64"},
            "url": {"string_value": "http://127.0.0.1:8000"},
        },
    }
    runner = Runner.load(model / "1" / "bundle", threads=1)
    first = np.frombuffer((model / "warmup" / "warm_up").read_bytes(), np.int64).reshape(1, 4)
    inputs = {"AUDIO": np.zeros((1, 1600), np.float32)} if kind == "speech" else {"INPUT_IDS": first}
    assert isinstance(run(runner, [Request(0, inputs, "")]).events[-1], Row), "the server would not become ready"


def test_options_are_in_the_configuration(triton_repo: Command, with_engine: Path, tmp_path: Path) -> None:
    options = "--max-batch-size 6 --max-rows 30 --instances 2 --batching-delay-us 0 --max-queue-size 9"
    cpu = triton_repo(with_engine, tmp_path, "--name", "c", *options.split(), "--url", "https://h:80").wrote()
    found = config_of(cpu.parent)
    assert found["max_batch_size"] == 6
    assert found["instance_group"] == [{"count": 2, "kind": "KIND_CPU"}]
    policy = {"max_queue_size": 9, "allow_timeout_override": True}
    assert found["dynamic_batching"] == {"default_queue_policy": policy}
    assert found["parameters"]["max_rows"] == {"string_value": "30"}
    assert found["parameters"]["url"] == {"string_value": "https://h:80"}
    assert not (cpu / "bundle" / "engines").exists()
    for name, chosen in (("g", ["--engine", "tensorrt"]), ("h", ["--engine", "tensorrt", "--device", "gpu"])):
        gpu = triton_repo(with_engine, tmp_path, "--name", name, "--instances", 2, *chosen).wrote()
        found = config_of(gpu.parent)
        assert found["instance_group"] == [{"count": 2, "kind": "KIND_GPU"}]
        assert found["parameters"]["engine"] == {"string_value": "tensorrt"}
        assert found["dynamic_batching"] == {}
        assert (gpu / "bundle" / "engines" / "mine" / "engine.json").read_text() == "{}"


def test_rows_count_the_beams_of_the_checkpoint(triton_repo: Command, bundles: BundleCache, tmp_path: Path) -> None:
    source = bundles("dedup", generation={"num_beams": 6})
    for options, expected in (([], "96"), (["--max-batch-size", 2], "12"), (["--max-rows", 6], "6")):
        model = triton_repo(source, tmp_path, "--name", "m", "--force", *options).wrote().parent
        assert config_of(model)["parameters"]["max_rows"]["string_value"] == expected
        assert f"At most {expected} rows" in (model / "README.md").read_text()
    before = content(tmp_path)
    refused = triton_repo(source, tmp_path, "--name", "m", "--force", "--max-rows", 5)
    refused.refused("--max-rows 5 leaves no room for the 6 beams that the checkpoint searches with; pass 6 or more")
    assert content(tmp_path) == before


@pytest.mark.parametrize(
    ("kind", "action"), [("text", "generate"), ("ids_only", "generate_stream"), ("speech", "generate")]
)
def test_readme_names_the_server_and_a_request(
    request: pytest.FixtureRequest, triton_repo: Command, tmp_path: Path, kind: str, action: str
) -> None:
    repository = tmp_path / "the models"
    options = ["--stream"] if action == "generate_stream" else []
    done = triton_repo(request.getfixturevalue(kind), repository, "--name", "m", *options)
    version = done.wrote(note="note: Triton's Python backend cannot read a path with ' '")
    readme = (version.parent / "README.md").read_text()
    (server,) = (line.strip() for line in readme.splitlines() if line.strip().startswith("tritonserver"))
    words = shlex.split(server)
    assert words[:2] == ["tritonserver", f"--model-repository={repository}"]
    assert {"--model-control-mode=explicit", "--load-model=m"} <= set(words)
    assert server in done.out
    (local,) = (line.strip() for line in readme.splitlines() if line.strip().startswith("serve-local"))
    assert shlex.split(local) == ["serve-local", str(repository)] and local in done.out
    (line,) = (line.strip() for line in readme.splitlines() if line.strip().startswith("curl"))
    assert line in done.out
    *command, url, option, body = shlex.split(line)
    assert command == (["curl", "-N"] if action == "generate_stream" else ["curl"])
    assert (url, option) == (f"http://127.0.0.1:8000/v2/models/m/{action}", "-d")
    inputs, parameters = {}, {}
    for name, value in json.loads(body).items():
        if name.isupper():
            dtype = {"TEXT": np.object_, "INPUT_IDS": np.int64, "AUDIO": np.float32}[name]
            inputs[name] = np.array([value] if isinstance(value, list) else [[value.encode()]], dtype)
        else:
            parameters[name] = value
    log = run(Runner.load(version / "bundle", threads=1), [Request(0, inputs, json.dumps(parameters))])
    assert log.outputs(0)


def test_model_name_is_derived_from_the_folders() -> None:
    made = {name: model_name_of(name) for name in ("bart-el", "a b", "..x", "-f", "\u00fcber", "a/b", "\u96ea")}
    assert made == {
        "bart-el": "bart-el",
        "a b": "a_b",
        "..x": "x",
        "-f": "f",
        "\u00fcber": "_ber",
        "a/b": "a_b",
        "\u96ea": "_",
    }


# ---- what is refused ----


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        *(
            (["--name", name], ["is not a model name; pass --name letters, digits, _, - and ."])
            for name in ("", ".", "..", ".hidden", "-x", "a b", "a/b", "/a", "\u00e9", "a\n", "a" * 129)
        ),
        (["--max-batch-size", 0], ["--max-batch-size 0 is not a number of at least 1; pass 1 or more"]),
        (["--max-batch-size", 2**31], ["--max-batch-size 2147483648"]),
        (["--max-rows", -1], ["--max-rows -1 is not a number of at least 0"]),
        (["--instances", 0], ["--instances 0 is not a number of at least 1"]),
        (["--batching-delay-us", -5], ["--batching-delay-us -5 "]),
        (["--max-queue-size", -1], ["--max-queue-size -1 "]),
        (["--device", "gpu"], ["--engine onnxruntime does not run with --device gpu", "--engine tensorrt"]),
        (["--device", "cpu", "--engine", "tensorrt"], ["--engine tensorrt does not run with --device cpu"]),
        (["--engine", "tensorrt"], ["has no TensorRT engine; build one: build-engine "]),
        (["--engine", "tensorrt:a100"], ["has no engine 'a100'; it has none; build one: build-engine "]),
        (["--engine", "tensorrt:"], ["--engine tensorrt: is not known; pass onnxruntime, tensorrt, or tensorrt:NAME"]),
        (["--engine", "tensorrtx"], ["--engine tensorrtx is not known; pass onnxruntime"]),
        (["--engine", "cuda"], ["--engine cuda is not known"]),
        (["--engine", ""], ["--engine  is not known"]),
        (
            ["--url", "127.0.0.1:8000"],
            ["--url 127.0.0.1:8000 is not an HTTP address; pass one such as http://127.0.0.1:8000"],
        ),
        (["--url", "http://a b"], ["is not an HTTP address"]),
        (["--url", "http://a/"], ["is not an HTTP address"]),
        *(
            (["--url", f"http://{host}"], ["is not an HTTP address"])
            for host in ("a;id", "a$(id):80", "a&b=1", "a:99999", "a:0", "a:", "[::1", "[g]", "a'b")
        ),
        (["--next-version"], ["does not exist, so it has no next version; leave --next-version out"]),
        (["--next-version", "--force"], ["--force replaces the versions that --next-version keeps; pass one"]),
    ],
    ids=str,
)
def test_settings_that_no_server_can_run(
    triton_repo: Command, text: Path, tmp_path: Path, options: list[object], parts: list[str]
) -> None:
    triton_repo(text, tmp_path / "models", *options).refused(*parts)
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_cannot_be_read(triton_repo: Command, with_engine: Path, tmp_path: Path) -> None:
    triton_repo(with_engine, tmp_path, "--engine", "tensorrt:mine").refused("engine.json has engine_version None")
    triton_repo(with_engine, tmp_path, "--engine", "tensorrt:other").refused("no engine 'other'; it has mine")
    assert list(tmp_path.iterdir()) == []


def test_bundles_that_cannot_be_served(triton_repo: Command, text: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(text, tmp_path / "broken"))
    with (broken / "decoder.onnx").open("r+b") as file:
        file.truncate(100)
    models = tmp_path / "models"
    triton_repo(broken, models).refused("decoder.onnx", "export the model again")
    triton_repo(tmp_path / "none", models).refused("is no folder; expected a bundle made by export-model")
    triton_repo(tmp_path, models, "--name", "m").refused("has no bundle.json")
    assert not models.exists()


@pytest.mark.parametrize("missing", ["tritonclient.grpc", "google.protobuf", "grpc"])
def test_without_tritonclient(
    triton_repo: Command, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """tritonclient without its extra grpc raises an error of another class."""
    for name in [name for name in sys.modules if name.startswith(("tritonclient", "google.protobuf", "grpc"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    done = triton_repo(text, tmp_path / "models")
    done.refused("config.pbtxt is written by tritonclient, which is not installed", "pip install 'tightbeam[triton]'")
    assert list(tmp_path.iterdir()) == []


def test_folders_of_others_are_not_changed(triton_repo: Command, text: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "other" / "1").mkdir(parents=True)
    (tmp_path / "other" / "config.pbtxt").write_text('name: "other" backend: "onnxruntime"')
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.pbtxt").write_bytes(b"\xff")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    before = content(tmp_path)
    for name in ("folder", "other", "odd", "file", "link"):
        for option in ([], ["--force"], ["--next-version"]):
            done = triton_repo(text, tmp_path, "--name", name, *option)
            done.refused(f"{tmp_path / name} exists, and was not made by triton-repo; choose another --name")
    assert content(tmp_path) == before and (tmp_path / "link").is_symlink()


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("file", "is a file, expected a folder; choose another path"),
        ("file/models", "Not a directory"),
        ("a" * 300, "File name too long"),
        ("/proc/models", "No such file or directory"),
        ("/dev/null/x", "Not a directory"),
    ],
)
def test_repositories_that_cannot_be_written(
    triton_repo: Command, text: Path, tmp_path: Path, place: str, reason: str
) -> None:
    (tmp_path / "file").write_text("mine")
    triton_repo(text, tmp_path / place).refused(place.split("/")[-1], reason)
    assert content(tmp_path) == {"file": b"mine"}


def test_a_repository_on_a_disk_that_is_read_only(
    triton_repo: Command, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    triton_repo(text, tmp_path).wrote()
    before = content(tmp_path)
    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    for options in (["--name", "n"], ["--force"], ["--next-version"]):
        triton_repo(text, tmp_path, *options).refused("cannot write ", "Read-only file system; nothing was left behind")
    assert content(tmp_path) == before


# ---- versions ----


def test_taken_name_is_refused_with_the_options(triton_repo: Command, text: Path, tmp_path: Path) -> None:
    triton_repo(text, tmp_path).wrote()
    before = content(tmp_path)
    done = triton_repo(text, tmp_path)
    done.refused("exists; pass --next-version to add a version, --force to replace it, or another --name")
    assert content(tmp_path) == before


def test_versions_go_up_and_the_old_ones_stay(triton_repo: Command, text: Path, ids_only: Path, tmp_path: Path) -> None:
    first = triton_repo(text, tmp_path, "--name", "m").wrote()
    before = content(first)
    second = triton_repo(ids_only, tmp_path, "--name", "m", "--next-version", "--max-batch-size", 3).wrote()
    assert second == tmp_path / "m" / "2"
    assert content(first) == before
    assert content(second / "bundle") == content(ids_only)
    found = config_of(tmp_path / "m")
    assert found["max_batch_size"] == 3
    assert [entry["name"] for entry in found["input"]] == ["INPUT_IDS", "LENGTHS"]
    assert "At most 12 rows" in (tmp_path / "m" / "README.md").read_text()
    assert {path.name for path in first.parent.iterdir()} == {"1", "2", "README.md", "config.pbtxt", "warmup"}
    shutil.rmtree(first)
    shutil.rmtree(tmp_path / "m" / "warmup")
    (tmp_path / "m" / "11").mkdir()
    third = triton_repo(text, tmp_path, "--name", "m", "--next-version").wrote()
    assert third.name == "12"
    assert (tmp_path / "m" / "warmup" / "warm_up").is_file()
    Runner.load(third / "bundle", threads=1)


def test_version_keeps_settings_that_are_not_given(triton_repo: Command, text: Path, tmp_path: Path) -> None:
    options = "--max-batch-size 3 --max-rows 50 --instances 2 --batching-delay-us 7 --max-queue-size 5 --stream"
    first = triton_repo(text, tmp_path, "--name", "m", *options.split(), "--url", "http://h:9000").wrote()
    before = (first.parent / "config.pbtxt").read_text()
    triton_repo(text, tmp_path, "--name", "m", "--next-version").wrote()
    assert (first.parent / "config.pbtxt").read_text() == before
    assert "--http-port=9000" in (first.parent / "README.md").read_text()
    triton_repo(text, tmp_path, "--name", "m", "--next-version", "--instances", 1).wrote()
    assert (first.parent / "config.pbtxt").read_text() == before.replace("count: 2", "count: 1")


def test_version_cannot_change_streaming(triton_repo: Command, text: Path, tmp_path: Path) -> None:
    triton_repo(text, tmp_path, "--name", "m").wrote()
    before = content(tmp_path)
    done = triton_repo(text, tmp_path, "--name", "m", "--next-version", "--stream")
    done.refused("a version cannot change whether", "choose another --name, or replace the model with --force")
    (tmp_path / "m" / "config.pbtxt").write_text('parameters { key: "made_by" } nonsense')
    done = triton_repo(text, tmp_path, "--name", "m", "--next-version")
    done.refused("config.pbtxt cannot be read", "--force")
    triton_repo(text, tmp_path, "--name", "m", "--force").wrote()
    assert content(tmp_path) == before


def test_force_replaces_all_versions(triton_repo: Command, text: Path, ids_only: Path, tmp_path: Path) -> None:
    triton_repo(text, tmp_path, "--name", "m").wrote()
    triton_repo(text, tmp_path, "--name", "m", "--next-version").wrote()
    version = triton_repo(ids_only, tmp_path, "--name", "m", "--force").wrote()
    assert {path.name for path in version.parent.iterdir()} == {"1", "README.md", "config.pbtxt", "warmup"}
    assert content(version / "bundle") == content(ids_only)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


# ---- failures ----


def failing_at(count: int, error: BaseException, function: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper of ``function`` that fails at its call number ``count``."""
    calls = iter(range(1, 10**6))

    def call(*arguments: Any, **settings: Any) -> Any:
        if next(calls) == count:
            raise error
        return function(*arguments, **settings)

    return call


NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


PLACES = [
    *((place, count) for place in ("shutil.copyfile", "pathlib.Path.write_text") for count in (1, 2)),
    ("os.fsync", 3),
]


@pytest.mark.parametrize(
    ("place", "count", "options"),
    [
        *((place, count, options) for place, count in PLACES for options in ([], ["--force"], ["--next-version"])),
        *(("pathlib.Path.replace", count, ["--next-version"]) for count in (1, 2, 3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("error", [NO_SPACE, KeyboardInterrupt()], ids=["no space", "interrupted"])
def test_failure_changes_no_file(
    triton_repo: Command,
    text: Path,
    ids_only: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    place: str,
    count: int,
    error: BaseException,
) -> None:
    repository = tmp_path / "models"
    repository.mkdir()
    if options:
        triton_repo(text, repository, "--name", "m").wrote()
    before = content(tmp_path)
    owner, _, name = place.rpartition(".")
    found: Any = {"shutil": shutil, "os": os, "pathlib.Path": Path}[owner]
    monkeypatch.setattr(found, name, failing_at(count, error, getattr(found, name)))
    done = triton_repo(ids_only, repository, "--name", "m", "--max-batch-size", 5, *options)
    monkeypatch.undo()
    if error is NO_SPACE:
        done.refused(f"cannot write {repository / 'm'}", "No space left on device; nothing was left behind")
    else:
        assert (done.code, done.err) == (130, "error: interrupted; nothing was left behind\n")
    after = content(tmp_path)
    if place.endswith("replace"):  # the readme may be the new one already
        before, after = (dict(files, **{"models/m/README.md": None}) for files in (before, after))
    assert after == before


STOPPING = """
import shutil, sys, time
copyfile = shutil.copyfile
def slow(source, target):
    copyfile(source, target)
    if target.name == "weights.safetensors":
        print("copied", flush=True)
        time.sleep(100)
shutil.copyfile = slow
sys.argv[0] = "triton-repo"
from tightbeam.deploy.serving.command import main
main()
"""


@pytest.mark.parametrize("options", [[], ["--next-version"]], ids=str)
def test_killed_while_copying(triton_repo: Command, text: Path, tmp_path: Path, options: list[str]) -> None:
    """Partial files are beside the repository, which a server may load meanwhile."""
    repository = tmp_path / "models"
    repository.mkdir()
    if options:
        triton_repo(text, repository).wrote()
    before, models = content(tmp_path), sorted(repository.iterdir())
    command = [sys.executable, "-c", STOPPING, str(text), str(repository), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout and running.stderr
        assert running.stdout.readline() == "copied\n"
        assert len(content(tmp_path)) > len(before) + 3
        assert sorted(repository.iterdir()) == models
        running.send_signal(signal.SIGTERM)
        error = running.stderr.read()
    assert (running.returncode, error) == (130, "error: interrupted; nothing was left behind\n")
    assert content(tmp_path) == before


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
from tightbeam.deploy.serving.command import main
main()
"""


def test_files_too_large_for_the_system(text: Path, tmp_path: Path) -> None:
    """A limit on the size of a file simulates a full disk."""
    assert (text / "weights.safetensors").stat().st_size > 9000
    command = [sys.executable, "-c", LIMITED, str(text), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    Done(done.returncode, done.stdout, done.stderr).refused("cannot write ", "File too large; nothing was left behind")
    assert list(tmp_path.iterdir()) == []


def test_the_command_has_a_name_and_help() -> None:
    module = [sys.executable, "-m", "tightbeam.deploy.serving.command"]
    done = subprocess.run([*module, "--help"], capture_output=True, text=True, check=True)
    assert "--next-version" in done.stdout and "--max-rows" in done.stdout
    wide = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run([*module, "--help"], capture_output=True, text=True, check=True, env=wide)
    assert "With --next-version, options that are not given keep their values." in done.stdout  # one line
    done = subprocess.run([*module, "a", "b", "--bad"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and line.endswith("; see triton-repo --help")
