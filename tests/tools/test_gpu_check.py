"""`tools/gpu_check.py`: outcomes of sections that pass, fail, hang, are killed or are stopped; and the report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from tools import gpu_check
from tools.gpu._process import read, reason_of, rows
from tools.gpu._report import STATE

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import os, signal, subprocess, sys, time
from pathlib import Path
def run(folder, rehearse, seconds):
    yield "Found", {{"what": "{name}", "how much": 1.23456, "raw": [seconds]}}
    {body}
"""
BODIES = {
    "machine": "yield 'machine', {'GPU': 'Some | GPU', 'driver': '580'}",
    "build": "import atexit; atexit.register(os.abort); yield 'a | b\\nc'",
    "tests": "print('first'); sys.exit('error: 3 failed')",
    "sanitizer": "sys.exit('skipped: it is not on the PATH')",
    "rates": "subprocess.Popen(['sleep', '600']); print('started', flush=True); time.sleep(600)",
    "kernels": "os.kill(os.getpid(), signal.SIGSEGV)",
    "generate": "raise ValueError('no, the value\\nis wrong')",
    "step": "raise RuntimeError('CUDA failure 2: out of memory')",
    "speech": "yield 'a second note'",
    "tensorrt": "subprocess.Popen(['sleep', '600'], cwd=folder)",
}


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a check with functions of ours in place of its sections'."""
    for name, body in BODIES.items():
        write_section(tmp_path, name, body)
    (tmp_path / "hardware.md").write_text("# What ran where\n\n## A CPU\n\nall of it\n")
    monkeypatch.setattr(gpu_check, "SECTION_MODULES", "sections")
    monkeypatch.setattr(gpu_check, "HARDWARE", tmp_path / "hardware.md")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def write_section(folder: Path, name: str, body: str) -> None:
    path = folder / "sections" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(SCRIPT.format(name=name, body=body))


def check(folder: Path, *sections: str, minutes: float = 5) -> int:
    try:
        gpu_check.gpu_check(list(sections), folder / "results", minutes, False)
    except typer.Exit as end:
        return end.exit_code
    return 0


def found_by(folder: Path, name: str) -> list[Any]:
    return read(folder / "results" / f"{name}.jsonl")


def state_of(folder: Path, name: str) -> dict[str, Any]:
    return {name: value for row in rows(found_by(folder, name), STATE) for name, value in row.items()}


def test_every_section_has_an_outcome(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(gpu_check.SECTIONS, "rates", gpu_check.Kind("hangs", 2 / 60))
    assert check(folder) == 1
    states = {name: state_of(folder, name) for name in BODIES}
    assert {name: (state["outcome"], state["reason"]) for name, state in states.items()} == {
        "machine": ("passed", ""),
        "build": ("passed", f"killed by SIGABRT; see {folder / 'results' / 'build.log'}"),
        "tests": ("failed", "3 failed"),
        "sanitizer": ("skipped", "it is not on the PATH"),
        "rates": ("timed out", "after 2 s; what it had found is kept"),
        "kernels": ("failed", f"killed by SIGSEGV; see {folder / 'results' / 'kernels.log'}"),
        "generate": ("failed", "ValueError: no, the value"),
        "step": ("out of memory", "RuntimeError: CUDA failure 2: out of memory"),
        "speech": ("passed", ""),
        "tensorrt": ("passed", ""),
    }
    assert all(rows(found_by(folder, name), "Found")[0]["what"] == name for name in BODIES)
    said = capsys.readouterr().err.splitlines()
    assert said[2].split()[::2] == ["tests", said[2].split()[2], "3"] and len(said) == 11
    links = (link for link in Path("/proc").glob("[0-9]*/cwd") if reads_as(link, folder / "results"))
    assert not list(links), "what a section started ends with it"


def reads_as(link: Path, folder: Path) -> bool:
    try:
        return link.readlink() == folder
    except OSError:
        return False


def test_later_sections_join_earlier_ones_in_the_report(folder: Path) -> None:
    assert check(folder, "machine", "build") == 0
    assert check(folder, "tests") == 1
    text, own = (folder / "hardware.md").read_text(), (folder / "results" / "gpu_check.md").read_text()
    assert text == "# What ran where\n\n## A CPU\n\nall of it\n\n" + own
    assert own.startswith("## Some | GPU (20") and "\ndriver 580.\n" in own
    assert "| tests | failed | 3 failed | " in own
    assert "\n### Found\n\n| what | how much |\n|---|---|\n| build | 1.235 |\n" in own
    assert "\n- build: a | b c\n" in own


def test_the_report_counts_right_checks_and_shows_wrong_ones(folder: Path) -> None:
    write_section(folder, "build", "yield from (('Checks', {'call': n, 'right': n != 2}) for n in range(4))")
    check(folder, "build")
    own = (folder / "results" / "gpu_check.md").read_text()
    assert "\n### Checks\n\n3 of 4 are right.\n\n| call | right |\n|---|---|\n| 2 | no |\n" in own


def test_a_section_is_skipped_if_one_that_it_needs_failed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu_check.SECTIONS, "sanitizer", gpu_check.Kind("", 1, ("tests",)))
    assert check(folder, "sanitizer", "tests") == 1
    assert state_of(folder, "sanitizer")["reason"] == "tests did not pass"
    assert check(folder, "sanitizer") == 0  # the exit code does not count sections of an earlier call


def test_a_section_gets_what_it_keeps_of_an_earlier_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_section(folder, "build", "yield 'Kept', {'a': 1}")
    monkeypatch.setitem(gpu_check.SECTIONS, "build", gpu_check.Kind("", 1, keeps=("Kept",)))
    check(folder, "build")
    check(folder, "build", minutes=0.5)
    found = found_by(folder, "build")
    assert len(rows(found, "Kept")) == 2
    assert [18 < row["raw"][0] <= 20 for row in rows(found, "Found")] == [True]


def test_earlier_results_stay_if_no_time_is_left(folder: Path) -> None:
    assert check(folder, "machine", minutes=0.001) == 0
    assert state_of(folder, "machine")["reason"] == "no time was left"
    check(folder, "machine")
    before = found_by(folder, "machine")
    assert check(folder, "machine", minutes=0.001) == 0
    assert found_by(folder, "machine") == before


def test_an_unknown_section_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(folder, "machines") == 2
    assert "error: no section 'machines'; expected some of machine, build, tests" in capsys.readouterr().err


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('["a", {"b": 1}]\n["a", {"b"\n["a", {"b": 2}]\n')
    assert rows(read(tmp_path / "x.jsonl"), "a") == [{"b": 1}, {"b": 2}]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("", ""),
        ("a\n\n", "a"),
        ("│ Invalid value: no GPU │\n╰──────╯\n", "│ Invalid value: no GPU │"),
        (
            "Traceback (most recent call last):\n  File x\n    f()\n    ^^^\ntorch.AcceleratorError: no image\n"
            "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n",
            "torch.AcceleratorError: no image",
        ),
        ("Traceback (most recent call last):\nKeyError: 'a'\n1 failed\nerror: 1 failed\n", "error: 1 failed"),
    ],
)
def test_the_reason_of_a_failure_is_one_line_of_the_log(said: str, reason: str) -> None:
    assert reason_of(said) == reason


def test_a_stopped_check_reports_what_it_has(folder: Path) -> None:
    """A check that is stopped, by hand or with the machine, reports the results so far."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tools import gpu_check\n"
    start += "gpu_check.SECTION_MODULES = 'sections'; sys.argv[1:] = ['machine', 'rates', '--rehearse', "
    start += f"'--results', {str(folder / 'results')!r}]; gpu_check.command_line(gpu_check.app, 'x')"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    process = subprocess.Popen([sys.executable, "-c", start], stderr=subprocess.PIPE, cwd=ROOT.parent, env=environment)
    log = folder / "results" / "rates.log"
    end = time.monotonic() + 60
    while not (log.exists() and b"started" in log.read_bytes()):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert state_of(folder, "machine")["outcome"] == "passed"
    assert state_of(folder, "rates")["outcome"] == "stopped"
    assert (
        "| rates | stopped | the check was stopped while this ran |"
        in (folder / "results" / "gpu_check.md").read_text()
    )
    assert json.loads((folder / "results" / "rates.jsonl").read_text().splitlines()[1])[1]["what"] == "rates"
