"""A bundle is written whole or not at all: failures, kills, and output folders that exist."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from tightbeam.deploy import Bundle, BundleError
from tightbeam.deploy.bundle import atomic_dir
from tightbeam.deploy.bundle.manifest import Manifest
from tightbeam.deploy.bundle.writer import write_bundle
from tightbeam.export import ExportError, export_model
from tightbeam.export.writing.weights import plan_weights, write_weights


@pytest.fixture(scope="module")
def bundle(bundles: BundleCache) -> Path:
    """A whole bundle with a tokenizer, shared: change only a copy."""
    return bundles("el", tokenizer=True)


@pytest.fixture
def fill(bundle: Path) -> Callable[[Path], Manifest]:
    """Writes the files of the shared bundle."""

    def write(folder: Path) -> Manifest:
        shutil.copytree(bundle, folder, dirs_exist_ok=True)
        return Bundle.load(bundle, verify=False).manifest

    return write


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_writing_makes_the_bundle_and_nothing_else(tmp_path: Path, bundle: Path, fill: Any) -> None:
    written = write_bundle(tmp_path / "new" / "deep" / "out", fill)
    assert Bundle.load(written.path) == written
    assert content(written.path) == content(bundle)
    assert [path.name for path in (tmp_path / "new" / "deep").iterdir()] == ["out"]


class Boom(RuntimeError):
    pass


def full_disk(folder: Path) -> Manifest:
    (folder / "encoder.onnx").write_bytes(b"half")
    write_weights(Path("/dev/full"), plan_weights({"w": np.zeros((64, 64), np.float32)}))
    raise AssertionError("/dev/full took it")


def raising(error: BaseException) -> Callable[[Path], Manifest]:
    def fill(folder: Path) -> Manifest:
        (folder / "encoder.onnx").write_bytes(b"half")
        raise error

    return fill


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        (raising(Boom()), Boom),
        (raising(KeyboardInterrupt()), KeyboardInterrupt),
        (raising(SystemExit(1)), SystemExit),
        (raising(OSError(28, "No space left on device")), BundleError),
        pytest.param(
            full_disk, BundleError, marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
        ),
    ],
    ids=["error", "ctrl-c", "exit", "no space", "full device"],
)
def test_failure_while_writing_leaves_things_as_they_were(
    tmp_path: Path, fill: Any, failing: Any, expected: type[BaseException]
) -> None:
    with pytest.raises(expected) as caught:
        write_bundle(tmp_path / "out", failing)
    assert list(tmp_path.iterdir()) == []
    if expected is BundleError:
        assert "No space left on device" in str(caught.value)

    (tmp_path / "out").mkdir()  # an empty folder is no loss
    write_bundle(tmp_path / "out", fill)
    before = content(tmp_path / "out")
    with pytest.raises(expected):
        write_bundle(tmp_path / "out", failing, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert content(tmp_path / "out") == before
    assert Bundle.load(tmp_path / "out")


def test_no_space_at_the_last_sync(tmp_path: Path, fill: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(BundleError, match="No space left on device"):
        write_bundle(tmp_path / "out", fill)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(5, "Input/output error")], ids=["ctrl-c", "error"])
@pytest.mark.parametrize("failing_rename", [1, 2, 3])
def test_failure_while_replacing_keeps_the_old_bundle(
    tmp_path: Path, fill: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, failing_rename: int
) -> None:
    """On a file system that cannot exchange two names: the folder gets its first name, and the two change places."""
    monkeypatch.setattr(atomic_dir, "_exchanged", lambda first, second: False)
    write_bundle(tmp_path / "out", fill)
    (tmp_path / "out" / "mine").write_text("the old one")
    calls = 0
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == failing_rename:
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else BundleError):
        write_bundle(tmp_path / "out", fill, force=True)
    assert (tmp_path / "out" / "mine").read_text() == "the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


KILLED = """
import sys, time
from pathlib import Path
from tightbeam.deploy.bundle.writer import write_bundle
def fill(folder):
    (folder / "encoder.onnx").write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(60)
write_bundle(sys.argv[1], fill, force=True)
"""


@pytest.mark.parametrize("existing", [False, True])
def test_kill_while_writing(tmp_path: Path, fill: Any, existing: bool) -> None:
    target = tmp_path / "out"
    if existing:
        write_bundle(target, fill)
    before = content(target)
    with subprocess.Popen([sys.executable, "-c", KILLED, str(target)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(signal.SIGKILL)
    assert target.exists() == existing
    assert content(target) == before
    assert len(list(tmp_path.glob(".out.partial-*"))) == 1
    write_bundle(target, fill, force=existing)
    assert Bundle.load(target)
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "the next writer removes what was left behind"


def test_the_folder_of_a_running_writer_is_left_alone(tmp_path: Path, fill: Any) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "out")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        (running,) = tmp_path.glob(".out.partial-*")
        write_bundle(tmp_path / "out", fill)
        assert running.exists()
        process.kill()


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        atomic_dir.write_folder(tmp_path / "out", lambda folder: None)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700


def test_a_bundle_is_replaced_without_a_moment_that_lacks_it(
    tmp_path: Path, fill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bundle(tmp_path / "out", fill)
    renamed = []
    rename = Path.rename

    def recorded(path: Path, target: Path) -> Path:
        renamed.append(path.name)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", recorded)
    write_bundle(tmp_path / "out", fill, force=True)
    assert "out" not in renamed
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def cannot_write(target: Path, *parts: str, force: bool = False) -> None:
    def never(_: Path) -> Manifest:
        raise AssertionError("the work was begun")

    with pytest.raises(BundleError) as caught:
        write_bundle(target, never, force=force)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


def test_output_that_exists(tmp_path: Path, fill: Any) -> None:
    write_bundle(tmp_path / "bundle", fill)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("bundle", "file", "folder", "dangling"):
        cannot_write(tmp_path / name, name, "exists", "--force")
    for name in ("file", "folder", "dangling"):
        cannot_write(tmp_path / name, name, "not a bundle", "--output", force=True)
    assert (tmp_path / "file").read_text() == (tmp_path / "folder" / "thesis.txt").read_text() == "mine"


def test_output_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    cannot_write(tmp_path / "file" / "out", "--output")
    cannot_write(tmp_path / ("n" * 300), "File name too long", "--output")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_parent(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    cannot_write(tmp_path / "locked" / "deep" / "out", "locked", "--output")


def test_parent_that_refuses_new_folders(fill: Any) -> None:
    with pytest.raises(BundleError, match="cannot"):
        write_bundle("/proc/self/out", fill)


def test_output_made_by_someone_else_meanwhile(tmp_path: Path, fill: Any) -> None:
    def slow(folder: Path) -> Manifest:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").write_text("theirs")
        return fill(folder)

    with pytest.raises(BundleError, match="out"):
        write_bundle(tmp_path / "out", slow)
    assert content(tmp_path / "out") == {"theirs": b"theirs"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_replacing_through_a_link_spares_what_it_points_to(tmp_path: Path, fill: Any) -> None:
    write_bundle(tmp_path / "real", fill)
    (tmp_path / "real" / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_bundle(tmp_path / "link", fill, force=True)
    assert (tmp_path / "real" / "mine").exists()
    assert Bundle.load(tmp_path / "link") and not (tmp_path / "link" / "mine").exists()


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ExportError):
        export_model(tmp_path / "nothing", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
