"""Models of a repository that has them: new versions, replacement, and failures that change no file."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.serving.repositories import Command, Done, config_of, content
from tightbeam.deploy import Runner


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
from tightbeam.deploy.commands.triton_repo import main
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


@pytest.mark.parametrize("options", [[], ["--next-version"]], ids=str)
def test_the_next_command_removes_what_a_kill_left(
    triton_repo: Command, text: Path, tmp_path: Path, options: list[str]
) -> None:
    repository = tmp_path / "models"
    repository.mkdir()
    if options:
        triton_repo(text, repository).wrote()
    command = [sys.executable, "-c", STOPPING, str(text), str(repository), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout and running.stdout.readline() == b"copied\n"
        running.send_signal(signal.SIGKILL)
    assert list(tmp_path.rglob(".*"))
    triton_repo(text, repository, *options).wrote()
    assert list(tmp_path.rglob(".*")) == []


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
from tightbeam.deploy.commands.triton_repo import main
main()
"""


def test_files_too_large_for_the_system(text: Path, tmp_path: Path) -> None:
    """A limit on the size of a file simulates a full disk."""
    assert (text / "weights.safetensors").stat().st_size > 9000
    command = [sys.executable, "-c", LIMITED, str(text), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    Done(done.returncode, done.stdout, done.stderr).refused("cannot write ", "File too large; nothing was left behind")
    assert list(tmp_path.iterdir()) == []
