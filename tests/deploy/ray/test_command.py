"""`run-model --ray`: errors that need no cluster."""

from __future__ import annotations

import importlib
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import tightbeam.deploy.ray.run as ray_run
from support.commands import Command, caller
from tightbeam.deploy.ray.results import write_result
from tightbeam.deploy.ray.run import _Run
from tightbeam.deploy.ray.sizing import Actors
from tightbeam.deploy.ray.worker import PartitionReport

BUNDLE = Path(__file__).resolve().parents[2] / "data" / "bundle-format-2"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return caller(monkeypatch, capsys)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "a.txt"
    file.write_text("a small town\n")
    return file


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--ray", "--resume", "x"], ["--resume, --force and --document are not for --ray"]),
        (["--ray", "--document"], ["not for --ray"]),
        (["--text-field", "body"], ["are for --ray; leave them out, or add --ray"]),
        (["--partition-rows", "9"], ["are for --ray"]),
        (["--ray", "--max-new-tokens", "100000"], ["max_new_tokens=100000", "pass --max-new-tokens 31 or less"]),
        (["--ray", "--device", "cuda", "--threads", "2"], ["--threads is for the CPU"]),
    ],
)
def test_options(command: Command, text: Path, arguments: list[str], parts: list[str]) -> None:
    command(BUNDLE, text, *arguments).failed(*parts)


def test_missing_parts(command: Command, text: Path, tmp_path: Path) -> None:
    command(tmp_path / "none", text, "--ray").failed("none is not a folder; expected a bundle")
    command(BUNDLE, tmp_path / "none", "--ray").failed("there is no file or folder")
    command(BUNDLE, "--ray").failed("--ray does not read standard input")
    command(BUNDLE, text, "--ray", "--output", text).failed("is a file; --ray writes a folder")
    command(BUNDLE, text, "--ray", "--output", tmp_path).failed("is not empty, and holds no results of --ray")


@pytest.mark.parametrize("missing", ["ray", "ray.data"])
def test_without_ray(command: Command, text: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def without(name: str) -> Any:
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return json

    monkeypatch.setattr(importlib, "import_module", without)
    command(BUNDLE, text, "--ray").failed("needs the package ray", "pip install 'tightbeam[ray]'")


def test_a_cluster_that_does_not_answer(command: Command, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(importlib, "import_module", lambda name: json)
    command(BUNDLE, text, "--ray").failed("the Ray cluster at RAY_ADDRESS=127.0.0.1:9 cannot be used", "ray start")


def test_the_last_cluster_does_not_answer(
    command: Command, text: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """RAY_ADDRESS=auto, and the file with the address of a cluster that is gone."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:9\n")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(importlib, "import_module", lambda name: json)
    command(BUNDLE, text, "--ray").failed("the Ray cluster at RAY_ADDRESS=auto, 127.0.0.1:9 cannot be used")


def test_rows_that_failed_before_make_the_exit_code(
    command: Command, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is missing, so nothing is run, and no cluster is needed."""
    folder = tmp_path / "results"

    def run_none(self: Any, memory: Any) -> int:
        write_result(folder / f"{text.name}-00000.jsonl", b'{"line": 1, "error": "empty text"}\n')
        return 1

    monkeypatch.setattr(_Run, "go", run_none)
    for _ in range(2):
        found = command(BUNDLE, text, "--ray", "--output", folder)
        assert found.code == 1
    assert found.err.splitlines() == [
        f"note: {folder} has the results of 1 of 1 partition",
        'error: 1 row of earlier runs could not be run; each has its "error" in the results',
    ]
    (folder / f"{text.name}-00000.jsonl").write_bytes(b"[1")
    command(BUNDLE, text, "--ray", "--output", folder).failed("holds no results; remove it")


def test_a_partition_that_nobody_reports_keeps_its_lines(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of standard output for each line of the input, in its order, so that their numbers agree."""

    class Cluster:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            pass

        def reports(self, partitions: Any) -> Any:
            for index in (0, 3, 2):
                yield PartitionReport(index, rows=2, lines=[f"{index} first", f"{index} second"])

        def started(self) -> None:
            return None

    monkeypatch.setattr(ray_run, "connected", nullcontext)
    monkeypatch.setattr(ray_run, "machines", lambda ray: [])
    monkeypatch.setattr(ray_run, "plan_actors", lambda *given, **options: Actors(1, 1))
    monkeypatch.setattr(ray_run, "ClusterRun", Cluster)
    file = tmp_path / "a.txt"
    file.write_text("a town\n" * 8)
    done = command(BUNDLE, file, "--ray", "--partition-rows", "2")
    assert done.code == 1
    assert done.out.splitlines() == ["0 first", "0 second", "", "", "2 first", "2 second", "3 first", "3 second"]
    assert f"error: {file.name}, rows 3 to 4: no actor reported it" in done.err
