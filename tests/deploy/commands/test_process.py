"""The commands as processes: closed pipes, interrupts, full disks and closed standard streams."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from support.commands import MODULE, SHORT, Done, caller, process
from support.slow_cases import slow_unless


@pytest.fixture(scope="module")
def bundle(bundles: BundleCache) -> Path:
    return bundles("el", tokenizer=True)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in SENTENCES), "utf-8")
    return path


def test_closed_output_pipe(bundle: Path) -> None:
    command = [*MODULE, str(bundle), "-", "--batch-size", "1", *SHORT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin and running.stdout and running.stderr
        running.stdin.write(b"a small town\n" * 50)
        running.stdin.close()
        assert running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 1


def test_interrupt(bundle: Path) -> None:
    command = [*MODULE, str(bundle), "-", "--batch-size", "1", *SHORT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin and running.stdout and running.stderr
        running.stdin.write(b"a small town\n")
        running.stdin.flush()
        assert running.stdout.readline()  # now it waits for the second line
        running.send_signal(signal.SIGINT)
        error = running.stderr.read().decode()
    assert running.returncode == 130
    assert error.startswith("error: interrupted") and len(error.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk(bundle: Path, texts: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*MODULE, str(bundle), str(texts), *SHORT], stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    Done(done.returncode, "", done.stderr.decode()).failed("No space left on device", code=1)


COMMANDS = [
    f"tightbeam.{name}"
    for name in (
        *(
            "deploy.commands.run_model",
            "deploy.commands.show_bundle",
            "deploy.commands.triton_repo",
            "deploy.commands.serve_local",
        ),
        *("export.command", "export.build_command"),
    )
]


def entry(module: str) -> list[str]:
    return [sys.executable, "-c", f"from {module} import main; main()"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("option", "module"),
    slow_unless(
        itertools.product(("--help", "--version"), COMMANDS),
        lambda option, module: module == (COMMANDS[-1] if option == "--help" else COMMANDS[0]),
    ),
)
def test_full_disk_under_help_and_version(module: str, option: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*entry(module), option], stdout=full, stderr=subprocess.PIPE, timeout=60)
    failed = Done(done.returncode, "", done.stderr.decode()).failed("standard output: no space left on device")
    assert len(failed.messages) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_full_disk_under_show_bundle_and_triton_repo(bundle: Path, tmp_path: Path) -> None:
    for module, *more in ((COMMANDS[1],), (COMMANDS[2], tmp_path)):
        with open("/dev/full", "wb") as full:
            command = [*entry(module), str(bundle), *map(str, more)]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60)
        failed = Done(done.returncode, "", done.stderr.decode()).failed("standard output: no space left on device")
        assert len(failed.messages) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_under_standard_error_loses_no_result(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = b"a small town\n\nby the river\n"  # the second is an error
    kept = caller(monkeypatch, capsys)(bundle, "--json", "--batch-size", 1, *SHORT, stdin=lines)
    with open("/dev/full", "wb") as full:
        command = [*MODULE, str(bundle), "--json", "--batch-size", "1", *SHORT]
        done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, stderr=full, timeout=60)
    assert (done.returncode, done.stdout.decode()) == (1, kept.out)


@pytest.mark.parametrize(
    ("closed", "part"), [("<&-", "standard input is closed"), (">&-", "standard output is closed")]
)
def test_closed_standard_streams(bundle: Path, texts: Path, closed: str, part: str) -> None:
    source = "-" if closed == "<&-" else str(texts)
    done = process(*MODULE, bundle, source, command=["sh", "-c", f'exec "$@" {closed}', "sh"])
    done.failed(part)
