"""The weights file is compared while the model loads, and nothing is returned before."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles.cache import BundleCache
from tightbeam.deploy import Bundle, BundleError, Runner
from tightbeam.deploy.bundle import reader, verified
from tightbeam.deploy.bundle.manifest import FileEntry
from tightbeam.deploy.bundle.reader import sha256_of
from tightbeam.deploy.bundle.weights_check import WeightsCheck
from tightbeam.deploy.scheduling.events import NullEvents
from tightbeam.deploy.search.callbacks import NullCallback

CHANGED = r"weights\.safetensors was changed since the export \(its SHA-256 differs\); export the model again"
IDS = np.array([[5, 6, 7]])


def flip(folder: Path) -> Path:
    """Change one bit of the last weight."""
    with (folder / "weights.safetensors").open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        last = stream.read(1)
        stream.seek(-1, os.SEEK_END)
        stream.write(bytes([last[0] ^ 1]))
    return folder


@pytest.fixture
def copy(bundles: BundleCache, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundles("el", tokenizer=True), tmp_path / "bundle"))


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The comparison begins once this is set."""
    event, compare = threading.Event(), WeightsCheck._compare

    def waits(check: WeightsCheck, stream: Any) -> None:
        event.wait()
        compare(check, stream)

    monkeypatch.setattr(WeightsCheck, "_compare", waits)
    return event


class Recorder(NullCallback):
    """The tokens that a search has given."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def on_step(self, samples: Any, tokens: Any) -> Any:
        self.tokens += [] if tokens is None else tokens.tolist()
        return super().on_step(samples, tokens)


def streams(runner: Runner) -> None:
    heard = Recorder()
    try:
        runner.generate(IDS, max_new_tokens=4, callback=heard)
    finally:
        assert heard.tokens == []


def takes_turns(runner: Runner) -> None:
    class Events(NullEvents):
        def on_step(self, samples: Any, tokens: Any) -> Any:
            raise AssertionError("tokens of changed weights")

    scheduler = runner.scheduler(4, Events())
    scheduler.add(runner.sample(1, [5, 6, 7], {"max_new_tokens": 4}))
    ended: list[Any] = []
    while scheduler.active:
        ended += scheduler.turn()
    raise ended[0].error


CALLS: dict[str, Callable[[Runner], object]] = {
    "ids": lambda runner: runner.generate(IDS, max_new_tokens=4),
    "beams": lambda runner: runner.generate(IDS, num_beams=20, max_new_tokens=4),
    "texts": lambda runner: runner.generate_text(["a small town"], max_new_tokens=4),
    "streaming": streams,
    "scheduler": takes_turns,
    "waiting": Runner.wait_for_weights,
}


@pytest.mark.parametrize("call", CALLS)
def test_the_first_result_of_changed_weights_is_an_error_and_every_later_one(copy: Path, call: str) -> None:
    runner = Runner.load(flip(copy), threads=1)
    for _ in range(2):
        with pytest.raises(BundleError, match=CHANGED):
            CALLS[call](runner)
    with pytest.raises(BundleError, match=CHANGED):
        runner.generate(IDS, max_new_tokens=2)


def test_a_recording_of_changed_weights_is_an_error(bundles: BundleCache, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundles("dedup", "whisper"), tmp_path / "bundle"))
    runner = Runner.load(flip(folder), threads=1)
    assert runner.log_mel is not None
    features = np.zeros((1, runner.log_mel.mels, runner.log_mel.frames), np.float32)
    with pytest.raises(BundleError, match=CHANGED):
        runner.generate_from_features(features, max_new_tokens=4)


def test_nothing_is_returned_before_the_comparison_ends(copy: Path, gate: threading.Event) -> None:
    runner, heard, found = Runner.load(copy, threads=1), Recorder(), []
    caller = threading.Thread(
        target=lambda: found.append(runner.generate(IDS, max_new_tokens=4, callback=heard).sequences)
    )
    caller.start()
    caller.join(0.3)
    assert caller.is_alive()
    assert heard.tokens == []
    gate.set()
    caller.join()
    np.testing.assert_array_equal(found[0], Runner.load(copy, threads=1).generate(IDS, max_new_tokens=4).sequences)


def test_the_file_that_is_mapped_is_compared(copy: Path, gate: threading.Event) -> None:
    """Another file takes its place between the load and the comparison."""
    runner = Runner.load(copy, threads=1)
    expected = Runner.load(copy, threads=1, verify=False).generate(IDS, max_new_tokens=4).sequences
    shutil.copy(copy / "weights.safetensors", copy / "other")
    os.replace(copy / "other", copy / "weights.safetensors")
    flip(copy)
    gate.set()
    np.testing.assert_array_equal(runner.generate(IDS, max_new_tokens=4).sequences, expected)
    with pytest.raises(BundleError, match=CHANGED):
        Runner.load(copy, threads=1).wait_for_weights()


def test_a_run_over_files_ends_at_changed_weights(copy: Path, tmp_path: Path) -> None:
    """The command prints one error, in place of one for each line."""
    (tmp_path / "lines.txt").write_text("a small town\n" * 3)
    command = [
        sys.executable,
        "-P",
        "-m",
        "tightbeam.deploy.commands.run_model",
        str(flip(copy)),
        str(tmp_path / "lines.txt"),
    ]
    done = subprocess.run([*command, "--threads", "1", "--quiet"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf"error: .*{CHANGED}\n", done.stderr)


def test_a_bundle_by_itself_is_compared_at_once(copy: Path) -> None:
    flip(copy)
    with pytest.raises(BundleError, match=CHANGED):
        Bundle.load(copy)
    assert Bundle.load(copy, verify=False, weights_later=True).weights_check is None
    later = Bundle.load(copy, weights_later=True)
    assert later == Bundle.load(copy, verify=False)
    with pytest.raises(BundleError, match=CHANGED):
        later.wait_for_weights()


@pytest.mark.parametrize("engine", ["tensorrt", "onnxruntime"])
def test_runtimes_on_a_gpu_load_compared_weights(copy: Path, engine: str) -> None:
    """The reason is the weights, not the GPU or the engine that is missing."""
    flip(copy)
    with pytest.raises(BundleError, match=CHANGED):
        Runner.load(copy, engine=engine, device="cpu" if engine == "tensorrt" else "cuda")


def entry_of(path: Path) -> FileEntry:
    return FileEntry(file=path.name, bytes=path.stat().st_size, sha256=sha256_of(path))


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_files_of_any_size(tmp_path: Path, size: int) -> None:
    path = tmp_path / "weights"
    path.write_bytes(np.random.default_rng(size).bytes(size))
    check = WeightsCheck(path, entry_of(path))
    check.wait()
    content = check.file.content
    assert (b"" if content is None else content[:]) == path.read_bytes()


def test_a_file_that_cannot_be_opened_or_has_another_size(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"12345")
    entry = entry_of(path)
    path.write_bytes(b"1234")
    with pytest.raises(BundleError, match="weights has 4 bytes, expected 5; export the model again"):
        WeightsCheck(path, entry)
    path.unlink()
    with pytest.raises(BundleError, match=r"weights cannot be read .* check its permissions and the disk"):
        WeightsCheck(path, entry)


def test_a_file_that_becomes_shorter_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"12345")
    entry, status = entry_of(path), path.stat()
    path.write_bytes(b"123")
    sizes = iter([status])
    fstat = os.fstat
    monkeypatch.setattr("tightbeam.deploy.bundle.weights_check.os.fstat", lambda file: next(sizes, fstat(file)))
    with pytest.raises(BundleError, match="weights has 3 bytes, expected 5; export the model again"):
        WeightsCheck(path, entry)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are compared with their SHA-256, which may have changed just before."""
    found: list[str] = []
    file_digest, compare = reader._sha256, WeightsCheck._compare

    def small(stream: Any) -> str:
        found.append(Path(stream.name).name)
        return file_digest(stream)

    def weights(check: WeightsCheck, stream: Any) -> None:
        found.append(check.file.path.name)
        compare(check, stream)

    monkeypatch.setattr(reader, "_sha256", small)
    monkeypatch.setattr(WeightsCheck, "_compare", weights)
    monkeypatch.setattr(verified, "SETTLED_NS", -1)
    return found


def load_again(copy: Path, record: verified.VerifiedFiles) -> None:
    """Load a bundle as a worker that starts again does."""
    again = verified.VerifiedFiles(record.fingerprints)
    Runner.load(copy, threads=1, verify=again).wait_for_weights()
    assert again.fingerprints == record.fingerprints


def test_files_that_were_compared_are_not_read_again(copy: Path, compared: list[str]) -> None:
    record = verified.VerifiedFiles()
    Runner.load(copy, threads=1, verify=record).wait_for_weights()
    first = sorted(compared)
    assert first == sorted(Path(entry.file).name for entry in Bundle.load(copy, verify=False).manifest.files())
    load_again(copy, record)
    assert sorted(compared) == first


@pytest.mark.parametrize("name", ["weights.safetensors", "decoder.onnx"])
@pytest.mark.parametrize("how", ["written", "replaced"])
def test_files_that_changed_since_are_compared(copy: Path, compared: list[str], name: str, how: str) -> None:
    """Also if the size and the time of modification are as before."""
    record, path = verified.VerifiedFiles(), copy / name
    Runner.load(copy, threads=1, verify=record).wait_for_weights()
    before, content = path.stat(), path.read_bytes()
    if how == "replaced":
        path.rename(copy / "old")
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(BundleError, match=f"{name} was changed since the export"):
        load_again(copy, record)


def test_a_file_that_changed_just_now_is_compared_again(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second change within one tick of the clock would not be seen."""
    record = verified.VerifiedFiles()
    monkeypatch.setattr(verified, "SETTLED_NS", 10**18)
    Runner.load(copy, threads=1, verify=record).wait_for_weights()
    assert record.fingerprints == ()


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"12345")

    def digest() -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("tightbeam.deploy.bundle.weights_check.hashlib.sha256", digest)
    check = WeightsCheck(path, FileEntry(file="weights", bytes=5, sha256=""))
    for _ in range(2):
        with pytest.raises(BundleError, match=r"weights cannot be read \(Input/output error\)"):
            check.wait()


def test_a_check_that_is_stopped_is_no_result(tmp_path: Path, gate: threading.Event) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"12345")
    check = WeightsCheck(path, entry_of(path))
    threading.Timer(0.05, gate.set).start()
    check.stop()
    with pytest.raises(BundleError, match="was not compared with its SHA-256 to the end; load the bundle again"):
        check.wait()


def test_a_failed_load_stops_the_comparison(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks, start = [], WeightsCheck.__init__

    def started(check: WeightsCheck, *arguments: Any) -> None:
        start(check, *arguments)
        checks.append(check)

    def fails(bundle: Bundle) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(WeightsCheck, "__init__", started)
    monkeypatch.setattr("tightbeam.deploy.model.model.load_codec", fails)
    with pytest.raises(KeyboardInterrupt):
        Runner.load(copy, threads=1)
    assert [check._thread.is_alive() for check in checks] == [False]


def test_the_interpreter_ends_at_once_and_silently(tmp_path: Path) -> None:
    """The file is sparse, so that it takes seconds to compare and no space."""
    path = tmp_path / "weights"
    with path.open("wb") as stream:
        stream.truncate(16 << 30)
    code = (
        "import sys; from pathlib import Path\n"
        "from tightbeam.deploy.bundle.manifest import FileEntry\n"
        "from tightbeam.deploy.bundle.weights_check import WeightsCheck\n"
        "check = WeightsCheck(Path(sys.argv[1]), FileEntry(file='weights', bytes=16 << 30, sha256=''))"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-P", "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert time.monotonic() - start < 8  # the comparison takes longer
