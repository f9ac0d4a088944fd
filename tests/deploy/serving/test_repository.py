"""triton-repo: the files it writes, and the settings it refuses."""

from __future__ import annotations

import ast
import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import WHISPER_GENERATION
from support.runtimes.tensorrt_in_memory import engine_entry
from support.serving.repositories import Command, config_of, content
from support.serving.triton_requests import run
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.bundle.engine_files import EngineEntry, load_engine
from tightbeam.deploy.bundle.writer import file_entry, write_engine
from tightbeam.deploy.serving.protocol.messages import Request, Row
from tightbeam.deploy.serving.repository import models as repository_module
from tightbeam.deploy.serving.repository.config import model_name_of


@pytest.fixture(scope="module")
def speech(bundles: BundleCache) -> Path:
    return bundles("dedup", "whisper", generation=WHISPER_GENERATION, tokenizer=True)


@pytest.fixture(scope="module")
def with_engine(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with a TensorRT engine of a few bytes, and files beside it that no manifest names."""
    folder = Path(shutil.copytree(text, tmp_path_factory.mktemp("engine") / "bundle"))
    bundle = Bundle.load(folder)

    def fill(target: Path) -> EngineEntry:
        entry = engine_entry(bundle)
        for graph in ("encoder", "decoder"):
            (target / f"{graph}.engine").write_bytes(graph.encode())
            described = file_entry(target, f"{graph}.engine").model_dump()
            entry = entry.model_copy(update={graph: getattr(entry, graph).model_copy(update=described)})
        return entry

    engine = write_engine(bundle, "mine", fill)
    (engine.path / "secret").symlink_to("/etc/hostname")
    (folder / "engines" / "notes.txt").write_text("not of the bundle")
    return folder


def test_files_of_a_model(triton_repo: Command, text: Path, tmp_path: Path) -> None:
    version = triton_repo(text, tmp_path / "new" / "models").wrote()
    model = tmp_path / "new" / "models" / "bart-dedup"
    assert version == model / "1"
    assert {path.name for path in model.iterdir()} == {"1", "README.md", "config.pbtxt", "warmup"}
    assert {path.name for path in version.iterdir()} == {"model.py", "bundle"}
    assert list(model.parent.iterdir()) == [model]
    assert (version / "model.py").read_bytes() == (
        Path(repository_module.__file__).parents[1] / "model.py"
    ).read_bytes()
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
    source = (Path(repository_module.__file__).parents[1] / "model.py").read_text()
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
CUT = [
    *(tensor("TRUNCATED_TOKENS", "TYPE_INT32", 1), tensor("TRUNCATED_SIDE", "TYPE_STRING", 1)),
    tensor("REPORTS", "TYPE_STRING", 1),
]
FOUND = [
    tensor("SCORES", "TYPE_FP32", -1),
    tensor("OUTPUT_IDS", "TYPE_INT64", -1, -1),
    tensor("OUTPUT_LENGTHS", "TYPE_INT32", -1),
    tensor("FINISH_REASON", "TYPE_STRING", -1),
    tensor("SOURCE_TOKENS", "TYPE_INT32", 1),
    tensor("NEW_TOKENS", "TYPE_INT32", 1),
    *CUT,
    tensor("TOKEN_SCORES", "TYPE_FP32", -1, -1),
    tensor("ALTERNATIVE_IDS", "TYPE_INT64", -1, -1, -1),
    tensor("ALTERNATIVE_SCORES", "TYPE_FP32", -1, -1, -1),
]
PLACE = [tensor("INDEX", "TYPE_INT32", 1), tensor("FINISHED", "TYPE_BOOL", 1)]
WORDS = tensor("TEXT", "TYPE_STRING", -1)
INPUTS = {
    "text": [
        *(optional(name, "TYPE_STRING", 1) for name in ("TEXT", "MESSAGES")),
        optional("INPUT_IDS", "TYPE_INT64", -1),
        LENGTHS,
    ],
    "ids_only": [required("INPUT_IDS", "TYPE_INT64", -1), LENGTHS],
    "speech": [optional("AUDIO", "TYPE_FP32", -1), optional("AUDIO_FILE", "TYPE_STRING", 1), LENGTHS],
}
HEARD = [tensor(name, f"TYPE_{kind}", 1) for name, kind in (("SEGMENTS", "STRING"), ("LANGUAGE", "STRING"))]
HEARD.append(tensor("LANGUAGE_PROBABILITY", "TYPE_FP32", 1))
WITHOUT_CUT = [each for each in FOUND if each not in CUT]
OUTPUTS = {"text": [WORDS, *FOUND], "ids_only": WITHOUT_CUT, "speech": [WORDS, *WITHOUT_CUT, *HEARD]}


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
            "max_request_rows": {"string_value": "16"},
            "deadline_s": {"string_value": "3600"},
            "url": {"string_value": "http://127.0.0.1:8000"},
        },
    }
    runner = Runner.load(model / "1" / "bundle", threads=1)
    first = np.frombuffer((model / "warmup" / "warm_up").read_bytes(), np.int64).reshape(1, 4)
    inputs = {"AUDIO": np.zeros((1, 1600), np.float32)} if kind == "speech" else {"INPUT_IDS": first}
    assert isinstance(run(runner, [Request(0, inputs, "")]).events[-1], Row), "the server would not become ready"


def test_options_are_in_the_configuration(triton_repo: Command, with_engine: Path, tmp_path: Path) -> None:
    given = (
        "--max-batch-size 6 --max-request-rows 4 --max-rows 30 --instances 2 --batching-delay-us 0 --max-queue-size 9"
    )
    cpu = triton_repo(with_engine, tmp_path, "--name", "c", *given.split(), "--url", "https://h:80").wrote()
    found = config_of(cpu.parent)
    assert found["max_batch_size"] == 6
    assert found["instance_group"] == [{"count": 2, "kind": "KIND_CPU"}]
    policy = {"max_queue_size": 9, "allow_timeout_override": True}
    assert found["dynamic_batching"] == {"default_queue_policy": policy}
    assert found["parameters"]["max_rows"] == {"string_value": "30"}
    assert found["parameters"]["max_request_rows"] == {"string_value": "4"}
    assert found["parameters"]["url"] == {"string_value": "https://h:80"}
    assert not (cpu / "bundle" / "engines").exists()
    for name, chosen in (("g", []), ("h", ["--device", "cuda"]), ("i", ["--device", "gpu"])):
        options = ["--name", name, "--instances", "2", "--engine", "tensorrt", *chosen]
        gpu = triton_repo(with_engine, tmp_path, *options).wrote()
        found = config_of(gpu.parent)
        assert found["instance_group"] == [{"count": 2, "kind": "KIND_GPU"}]
        assert found["parameters"]["engine"] == {"string_value": "tensorrt"}
        assert found["dynamic_batching"] == {}
        copied = {str(path.relative_to(gpu / "bundle" / "engines")) for path in (gpu / "bundle" / "engines").rglob("*")}
        assert copied == {"mine", "mine/engine.json", "mine/encoder.engine", "mine/decoder.engine"}
        assert load_engine(Bundle.load(gpu / "bundle"), "mine").entry.encoder.bytes == len("encoder")


def test_rows_count_the_beams_of_the_checkpoint(triton_repo: Command, bundles: BundleCache, tmp_path: Path) -> None:
    source = bundles("dedup", generation={"num_beams": 6})
    for options, expected in (([], "96"), (["--max-batch-size", 2], "12"), (["--max-rows", 6], "6")):
        model = triton_repo(source, tmp_path, "--name", "m", "--force", *options).wrote().parent
        assert config_of(model)["parameters"]["max_rows"]["string_value"] == expected
        assert f"At most {expected} rows" in (model / "README.md").read_text()
    before = content(tmp_path)
    refused = triton_repo(source, tmp_path, "--name", "m", "--force", "--max-rows", 5)
    refused.refused("--max-rows 5 is less than the 6 beams that the checkpoint searches with; pass 6 or more")
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
        (["--device", "gpu"], ["--engine onnxruntime does not run with --device cuda", "--engine tensorrt"]),
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
    damaged = Path(shutil.copytree(with_engine, tmp_path / "damaged", ignore=shutil.ignore_patterns("secret")))
    (damaged / "engines" / "mine" / "engine.json").write_text("{}")
    models = tmp_path / "models"
    triton_repo(damaged, models, "--engine", "tensorrt:mine").refused("engine.json has engine_version None")
    triton_repo(with_engine, models, "--engine", "tensorrt:other").refused("no engine 'other'; it has mine")
    assert not models.exists()


def test_bundles_that_cannot_be_served(triton_repo: Command, text: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(text, tmp_path / "broken"))
    with (broken / "decoder.onnx").open("r+b") as file:
        file.truncate(100)
    models = tmp_path / "models"
    triton_repo(broken, models).refused("decoder.onnx", "export the model again")
    triton_repo(tmp_path / "none", models).refused("is not a folder; expected a bundle made by export-model")
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
    monkeypatch.setattr(Path, "mkdir", refuse)
    for options in (["--name", "n"], ["--force"], ["--next-version"]):
        triton_repo(text, tmp_path, *options).refused("cannot write ", "Read-only file system; nothing was left behind")
    assert content(tmp_path) == before


def test_the_command_has_a_name_and_help() -> None:
    module = [sys.executable, "-m", "tightbeam.deploy.commands.triton_repo"]
    done = subprocess.run([*module, "--help"], capture_output=True, text=True, check=True)
    assert "--next-version" in done.stdout and "--max-rows" in done.stdout
    assert "With --next-version, options that are not given keep their values." in " ".join(done.stdout.split())
    assert max(map(len, done.stdout.splitlines())) <= 80
    done = subprocess.run([*module, "a", "b", "--bad"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and line.endswith("; see triton-repo --help")
