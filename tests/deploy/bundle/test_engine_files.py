"""TensorRT engines of a bundle: the choice for this machine, and the errors where none fits."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.bundles.cache import BundleCache
from support.commands import Command, caller
from support.runtimes.tensorrt_in_memory import engine_entry
from tightbeam.deploy import Bundle, Runner
from tightbeam.deploy.bundle import atomic_dir
from tightbeam.deploy.bundle.engine_files import BuiltEngine, EngineEntry, engine_names, find_engine, load_engine
from tightbeam.deploy.bundle.writer import file_entry, write_engine
from tightbeam.deploy.errors import EngineFileError
from tightbeam.deploy.runtimes import tensorrt as tensorrt_module
from tightbeam.plugins.tensorrt.distribution import gpu_capability

HERE = ("tensorrt_rtx", "1.7", "89")
"""Distribution and version of the TensorRT of this machine, and its GPU's capability."""
GRAPHS = ("encoder", "decoder")
Fill = Callable[[Path], EngineEntry]


@pytest.fixture
def bundle(bundles: BundleCache, tmp_path: Path) -> Bundle:
    """A copy without engines."""
    return Bundle.load(shutil.copytree(bundles("dedup", "bart"), tmp_path / "bundle"))


def filled(bundle: Bundle, **changes: Any) -> Fill:
    def fill(folder: Path) -> EngineEntry:
        entry = engine_entry(bundle)
        for graph in GRAPHS:
            (folder / f"{graph}.engine").write_bytes(f"a {graph}, serialized".encode() * 100)
            described = file_entry(folder, f"{graph}.engine").model_dump()
            entry = entry.model_copy(update={graph: getattr(entry, graph).model_copy(update=described)})
        return entry.model_copy(update=changes)

    return fill


def add(bundle: Bundle, name: str = "a", **changes: Any) -> BuiltEngine:
    return write_engine(bundle, name, filled(bundle, **changes))


def edit(built: BuiltEngine, change: Callable[[dict[str, Any]], Any]) -> None:
    path = built.path / "engine.json"
    data = json.loads(path.read_text("utf-8"))
    change(data)
    path.write_text(json.dumps(data), "utf-8")


def refused(bundle: Bundle, *parts: str, name: str | None = None, here: tuple[str, str, str] = HERE) -> str:
    """The error is one line with the parts and the command that builds the engine."""
    with pytest.raises(EngineFileError) as caught:
        find_engine(bundle, name, *here)
    message = str(caught.value)
    assert message.isprintable() and f"build-engine {bundle.path} --compute-capability" in message
    assert all(part in message for part in parts), message
    return message


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Choice


def test_no_engine(bundle: Bundle) -> None:
    refused(bundle, f"bundle {bundle.path} has no TensorRT engine", "--compute-capability 89")
    assert engine_names(bundle.path) == []


def test_one_matching_engine(bundle: Bundle) -> None:
    written = add(bundle)
    assert engine_names(bundle.path) == ["a"]
    assert find_engine(bundle, None, *HERE) == find_engine(bundle, "a", *HERE) == written
    assert written.file(written.entry.decoder).read_bytes().startswith(b"a decoder")


def test_one_match_among_several_engines(bundle: Bundle) -> None:
    add(bundle, "a", capabilities=("80", "86"))
    fitting = add(bundle, "b", capabilities=("89", "120"))
    add(bundle, "c", tensorrt_version="1.6")
    add(bundle, "d", flavour="tensorrt")
    assert find_engine(bundle, None, *HERE) == fitting
    assert find_engine(bundle, None, "tensorrt", "1.7", "89").name == "d"


def test_several_matching_engines(bundle: Bundle) -> None:
    add(bundle, "a")
    add(bundle, "b", precision="fp16")
    with pytest.raises(EngineFileError, match=r"has several engines that fit: a, b; name one, tensorrt:NAME"):
        find_engine(bundle, None, *HERE)
    assert find_engine(bundle, "b", *HERE).name == "b"


@pytest.mark.parametrize(
    ("here", "reason", "capability"),
    [
        (("tensorrt_rtx", "1.8", "89"), "a is for tensorrt_rtx 1.7, here is tensorrt_rtx 1.8", "89"),
        (("tensorrt", "1.7", "89"), "a is for tensorrt_rtx 1.7, here is tensorrt 1.7", "89"),
        (("tensorrt_rtx", "1.7", "120"), "a is for compute capability 89, this GPU has 120", "120"),
    ],
)
def test_engines_of_other_machines(bundle: Bundle, here: tuple[str, str, str], reason: str, capability: str) -> None:
    """The command builds one with the same limits."""
    limits = add(bundle).entry.limits.model_copy(update={"max_batch_size": 3})
    edit(load_engine(bundle, "a"), lambda data: data.update(limits=limits.model_dump(), precision="bf16"))
    command = f"--compute-capability {capability} --precision bf16 --max-batch-size 3 --max-num-beams 5"
    refused(bundle, reason, command, here=here)
    refused(bundle, reason, command, here=here, name="a")
    add(bundle, "b", tensorrt_version="1.6")
    refused(bundle, reason, f"b is for tensorrt_rtx 1.6, here is {here[0]} {here[1]}", here=here)


@pytest.mark.parametrize(
    "name", ["b", "", ".", "..", "../a", "../engines/a", "a/", "a/../a", "/a", "\0", "a\nb", ".a", "a" * 300]
)
def test_invalid_engine_names(bundle: Bundle, name: str) -> None:
    add(bundle)
    shutil.copytree(bundle.path / "engines" / "a", bundle.path / "engines" / ".a")
    shutil.copytree(bundle.path / "engines" / "a", bundle.path / "a")
    shutil.copy(bundle.path / "engines" / "a" / "engine.json", bundle.path / "engine.json")
    refused(bundle, f"has no engine {name!r}; it has a; ", name=name)
    if name != "b":
        with pytest.raises(EngineFileError, match=r"(is not a name for an engine|too long); choose another --name"):
            write_engine(bundle, name, filled(bundle))


def test_the_command_of_an_error_replaces_the_engine(bundle: Bundle) -> None:
    """The names are quoted for a shell."""
    bundle = Bundle.load(bundle.path.rename(bundle.path.with_name("it's a $bundle")))
    built = add(bundle, "an & engine", tensorrt_version="1.6")
    commands = []
    for damage in (lambda: None, (built.path / "decoder.engine").unlink, (built.path / "engine.json").unlink):
        damage()
        with pytest.raises(EngineFileError) as caught:
            find_engine(bundle, built.name, *HERE)
        commands.append(shlex.split(str(caught.value).partition("build one: ")[2]))
    replacing = ["--name", "an & engine", "--force"]
    assert [(words[:3], words[-3:]) for words in commands] == [
        (["build-engine", str(bundle.path), "--compute-capability"], replacing)
    ] * 3


def test_error_does_not_suggest_replacing_an_engine_of_another_gpu(bundle: Bundle) -> None:
    add(bundle, capabilities=("120",))
    assert "--force" not in refused(bundle, "--compute-capability 89")


# Damage


def test_engine_built_from_an_older_bundle(bundle: Bundle) -> None:
    add(bundle, built_from={**engine_entry(bundle).built_from, "decoder.onnx": hashlib.sha256(b"older").hexdigest()})
    refused(bundle, "engines/a was built from another state of this bundle", "--max-new-tokens 50")


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("damage", ["missing", "truncated", "changed", "folder"])
def test_damaged_files(bundle: Bundle, graph: str, damage: str) -> None:
    path = add(bundle).path / f"{graph}.engine"
    if damage == "truncated":
        os.truncate(path, path.stat().st_size - 1)
    elif damage == "changed":
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    else:
        path.unlink()
    if damage == "folder":
        path.mkdir()
    said = {"truncated": "bytes, expected", "changed": "SHA-256 differs"}.get(damage, "is missing")
    message = refused(bundle, f"{graph}.engine", said, "--max-new-tokens 50")
    assert "export the model again" not in message
    if damage == "changed":
        assert find_engine(bundle, None, *HERE, verify=False).name == "a"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(engine_version=2), "has engine_version 2, this Tightbeam reads 1"),
        (lambda data: data.pop("engine_version"), "has engine_version None"),
        (lambda data: data.pop("limits"), "limits: Field required"),
        (lambda data: data["limits"].update(max_batch_size=0), "limits.max_batch_size: "),
        (lambda data: data.update(precision="int8"), "precision: "),
        (lambda data: data.update(more=1), "more: "),
        (lambda data: data["decoder"].update(file="../a/decoder.engine"), "'../a/decoder.engine'"),
        (lambda data: data["decoder"].update(file="/etc/passwd"), "'/etc/passwd'"),
    ],
)
def test_wrong_descriptions(bundle: Bundle, change: Callable[[dict[str, Any]], Any], said: str) -> None:
    edit(add(bundle), change)
    refused(bundle, said)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '{"engine_version": NaN}', "\udcff", "[" * 100_000])
def test_invalid_descriptions(bundle: Bundle, text: str) -> None:
    (add(bundle).path / "engine.json").write_bytes(text.encode(errors="surrogateescape"))
    refused(bundle, "engine.json")


def test_a_missing_description(bundle: Bundle) -> None:
    (add(bundle).path / "engine.json").unlink()
    refused(bundle, "has no TensorRT engine")
    refused(bundle, "engine.json cannot be read (No such file or directory)", name="a")


def test_damage_beside_the_engine_that_fits(bundle: Bundle) -> None:
    """Damage of another engine matters only where none fits."""
    damaged = add(bundle, "a")
    (damaged.path / "decoder.engine").unlink()
    add(bundle, "b", capabilities=("89", "90"))
    assert find_engine(bundle, None, *HERE).name == "b"
    other = ("tensorrt_rtx", "1.7", "90")
    assert find_engine(bundle, None, *other).name == "b"
    said = refused(bundle, "a cannot be used (", "decoder.engine is missing)", here=("tensorrt_rtx", "1.7", "100"))
    assert "b is for compute capability 89, 90, this GPU has 100" in said and said.count("build-engine") == 1


# Writing


def test_writing_changes_nothing_else(bundle: Bundle) -> None:
    before = content(bundle.path)
    add(bundle)
    after = content(bundle.path)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {
        f"engines/a/{file}" for file in ("engine.json", "encoder.engine", "decoder.engine")
    }
    assert (bundle.path / "engines" / "a").stat().st_mode & 0o777 == 0o755
    assert Bundle.load(bundle.path) == bundle
    Runner.load(bundle.path, threads=1)


def raising(error: BaseException) -> Fill:
    def fill(folder: Path) -> EngineEntry:
        (folder / "encoder.engine").write_bytes(b"half")
        raise error

    return fill


def full_disk(folder: Path) -> EngineEntry:
    (folder / "encoder.engine").write_bytes(b"half")
    with open("/dev/full", "wb") as stream:
        stream.write(b"0" * 100_000)
    raise AssertionError("/dev/full took it")


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        (raising(RuntimeError("no")), RuntimeError),
        (raising(KeyboardInterrupt()), KeyboardInterrupt),
        pytest.param(
            full_disk, EngineFileError, marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
        ),
    ],
    ids=["error", "ctrl-c", "full device"],
)
def test_failure_while_writing(bundle: Bundle, failing: Fill, expected: type[BaseException]) -> None:
    before = content(bundle.path)
    with pytest.raises(expected) as caught:
        write_engine(bundle, "a", failing)
    if expected is EngineFileError:
        assert re.fullmatch(
            r"cannot write .*/engines/a: No space left on device; nothing was left behind", str(caught.value)
        )
    assert content(bundle.path) == before
    assert not (bundle.path / "engines").exists()
    written = add(bundle)
    before = content(bundle.path)
    with pytest.raises(expected):
        write_engine(bundle, "a", failing, force=True)
    assert content(bundle.path) == before
    assert sorted(path.name for path in (bundle.path / "engines").iterdir()) == ["a"]
    assert load_engine(bundle, "a") == written


def test_model_name_that_is_taken(bundle: Bundle) -> None:
    add(bundle)
    with pytest.raises(EngineFileError, match=r"engines/a exists; choose another --name, or replace it with --force"):
        add(bundle, precision="fp16")
    replaced = write_engine(bundle, "a", filled(bundle, precision="fp16"), force=True)
    assert load_engine(bundle, "a") == replaced and replaced.entry.precision == "fp16"
    assert [path.name for path in (bundle.path / "engines").iterdir()] == ["a"]


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_failure_while_replacing_keeps_the_old_one(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    monkeypatch.setattr(atomic_dir, "_exchanged", lambda first, second: False)  # a file system that cannot do that
    written = add(bundle)
    rename, calls = Path.rename, []

    def renaming(path: Path, target: Path) -> Path:
        calls.append(path)
        if len(calls) == failing:
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renaming)
    with pytest.raises(EngineFileError, match="Input/output error"):
        write_engine(bundle, "a", filled(bundle, precision="fp16"), force=True)
    assert load_engine(bundle, "a") == written
    assert [path.name for path in (bundle.path / "engines").iterdir()] == ["a"]


# Loading


class Found:
    distribution, version = HERE[:2]


def test_the_runner_takes_the_engine_that_fits(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice alone, for a machine with a GPU and TensorRT."""
    opened = []

    class Device:
        capability = HERE[2]

    def engine(*arguments: Any) -> Any:
        opened.append(arguments)
        return "an engine"

    monkeypatch.setattr(tensorrt_module, "open_device", Device)
    monkeypatch.setattr(tensorrt_module, "TensorRTRuntime", engine)
    monkeypatch.setattr("tightbeam.plugins.tensorrt.plugin.register_plugins", Found)
    with pytest.raises(EngineFileError, match=r"has no TensorRT engine; build one: .* --compute-capability current$"):
        Runner.load(bundle.path, engine="tensorrt")
    first, second = add(bundle, "a"), add(bundle, "b", capabilities=("80",))
    assert Runner.load(bundle.path, engine="tensorrt").model.runtime == "an engine"
    Runner.load(bundle.path, engine="tensorrt:a")
    assert [arguments[1] for arguments in opened] == [first, first]
    with pytest.raises(EngineFileError, match="b is for compute capability 80, this GPU has 89"):
        Runner.load(bundle.path, engine="tensorrt:b")
    with pytest.raises(EngineFileError, match="has no engine 'c'; it has a, b"):
        Runner.load(bundle.path, engine="tensorrt:c")
    (second.path / "decoder.engine").write_bytes(b"")
    assert Runner.load(bundle.path, engine="tensorrt", verify=False).model.runtime == "an engine"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(monkeypatch, capsys)


@pytest.mark.skipif(gpu_capability() is not None, reason="this machine has a GPU")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--engine", "tensorrt"), "this machine has no NVIDIA GPU, or no driver for it; run on the CPU"),
        (("--engine", "tensorrt:a"), "this machine has no NVIDIA GPU, or no driver"),
        (("--engine", "tensorrt", "--threads", 2), "threads=2 does nothing with engine='tensorrt'; leave threads out"),
        (("--engine", "openvino"), "engine='openvino' is not known; pass onnxruntime, tensorrt, or tensorrt:NAME"),
        (("--engine", "tensorrt:"), "engine='tensorrt:' is not known"),
    ],
)
def test_the_command_reports_in_one_line(bundle: Bundle, call: Command, options: tuple[object, ...], said: str) -> None:
    add(bundle)
    done = call(bundle.path, "-", *options)
    assert (done.code, done.out) == (1, "")
    (line,) = done.err.splitlines()
    assert line.startswith(f"error: {said}")


def test_the_command_runs_onnx_runtime_on_request(bundle: Bundle, call: Command) -> None:
    done = call(bundle.path, "-", "--engine", "onnxruntime", "--ids", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
