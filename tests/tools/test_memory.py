"""Memory and load time of a bundle (`python -m tools.bench.memory`)."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from support.bundles.cache import BundleCache
from support.commands import Command, caller
from tools.bench.memory import main, usage_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
COPY = "x = {}; print(flush=True); input()"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, in this process."""
    return partial(caller(monkeypatch, capsys), entry=main)


def used_mb(content: str) -> tuple[float, float]:
    """Anonymous and file-backed memory of a process that keeps ``content``."""
    command = [sys.executable, "-c", COPY.format(content)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        usage = usage_of(process.pid)
        process.kill()
    assert usage.resident == pytest.approx(usage.anonymous + usage.file_backed)
    assert usage.peak >= usage.resident
    return usage.anonymous, usage.file_backed


def test_allocated_and_mapped_memory_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(30_000_000))
    anonymous, mapped = used_mb("0")
    assert used_mb("b'1' * 30_000_000") == pytest.approx((anonymous + 30, mapped), abs=2)
    content = f"__import__('mmap').mmap(__import__('os').open({str(file)!r}, 0), 0, prot=1); sum(x[::4096])"
    assert used_mb(content) == pytest.approx((anonymous, mapped + 30), abs=2)


def test_the_figures_of_three_processes(bundles: BundleCache, memory: Command) -> None:
    done = memory(bundles("dedup"), "--processes", 3, "--threads", 1, "--source-length", 8, "--new-tokens", 5)
    disk, _, load, result, peak, anonymous, mapped, _, *shares = map(float, re.findall(r"\d+(?:\.\d+)?", done.out))
    assert min(disk, load, result) > 0
    assert peak + 1 >= anonymous + mapped
    assert len(shares) == 3 and all(share < anonymous + mapped for share in shares)


def test_errors_are_one_line(bundles: BundleCache, memory: Command, tmp_path: Path) -> None:
    memory(tmp_path).failed("has no bundle.json")
    memory(bundles("dedup"), "--source-length", 100_000).failed("--source-length 100000 is not possible")
    memory(bundles("dedup"), "--source-length", 8, "--new-tokens", 5, "--recording", "x.wav").failed("text model")
