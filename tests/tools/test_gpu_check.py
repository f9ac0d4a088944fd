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

from tools import gpu_check

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import os, signal, subprocess, sys, time
from pathlib import Path
from tools.gpu._results import Results, skip
results = Results(Path(sys.argv[sys.argv.index("--output") + 1]))
results.row("Found", ("what", "how much"), ("{name}", 1))
results.figure("arguments", sys.argv[1:])
{body}
"""
BODIES = {
    "machine": "results.figure('gpu', 'Some GPU'); results.figure('driver', '580'); results.figure('count', 2)",
    "build": "results.note('a | b\\nc')",
    "tests": "print('first'); sys.exit('error: 3 failed')",
    "sanitizer": "skip('it is not on the PATH')",
    "rates": "subprocess.Popen(['sleep', '600']); print('started', flush=True); time.sleep(600)",
    "kernels": "os.kill(os.getpid(), signal.SIGSEGV)",
    "generate": "raise ValueError('no, the value\\nis wrong')",
    "step": "results.figure('x', float('nan'))",
    "tensorrt": "pass",
}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module, with scripts of ours in place of its sections'."""
    for name, body in BODIES.items():
        write_section(tmp_path, name, body)
    monkeypatch.setattr(gpu_check, "SECTION_MODULES", "sections")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return gpu_check


def write_section(folder: Path, name: str, body: str) -> None:
    path = folder / "sections" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(SCRIPT.format(name=name, body=body))


def check(tool: Any, folder: Path, *arguments: str) -> int:
    hardware = folder / "hardware.md"
    if not hardware.exists():
        hardware.write_text("# What ran where\n\n## A CPU\n\nall of it\n")
    code = tool.app(
        [*arguments, "--results", str(folder / "results"), "--hardware", str(hardware)], standalone_mode=False
    )
    return int(code or 0)


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results" / "gpu_check.json").read_text())
    return found


def test_every_section_has_an_outcome(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(tool.SECTIONS, "rates", tool.Kind("hangs", 2 / 60))
    monkeypatch.setattr(tool, "GRACE_SECONDS", 1.0)
    assert check(tool, tmp_path) == 1
    found = report(tmp_path)
    outcomes = {name: (section["outcome"], section["reason"]) for name, section in found.items()}
    log = tmp_path / "results" / "kernels.log"
    assert outcomes == {
        "machine": ("passed", ""),
        "build": ("passed", ""),
        "tests": ("failed", "3 failed"),
        "sanitizer": ("skipped", "it is not on the PATH"),
        "rates": ("timed out", "after 2 s; what it had found is kept"),
        "kernels": ("failed", f"killed by SIGSEGV; see {log}"),
        "generate": ("failed", "ValueError: no, the value"),
        "step": ("failed", "ValueError: Out of range float values are not JSON compliant: nan"),
        "tensorrt": ("passed", ""),
    }
    assert all(section["tables"][0]["rows"] == [[name, "1"]] for name, section in found.items())
    said = capsys.readouterr().err.splitlines()
    assert said[2].split() == ["tests", "failed", said[2].split()[2], "s", "3", "failed"]
    assert len(said) == 10
    assert not processes_of(tmp_path), "what a section started ends with it"


def processes_of(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line and str(os.getpid()) not in str(process):
            found.append(line)
    return found


def test_later_sections_join_earlier_ones(tool: Any, tmp_path: Path) -> None:
    assert check(tool, tmp_path, "machine", "tensorrt") == 0
    assert check(tool, tmp_path, "tests") == 1
    assert list(report(tmp_path)) == ["machine", "tests", "tensorrt"]
    text = (tmp_path / "hardware.md").read_text()
    assert text == "# What ran where\n\n## A CPU\n\nall of it\n\n" + (tmp_path / "results" / "gpu_check.md").read_text()
    assert text.count("## Some GPU (20") == 1
    assert "\ndriver 580.\n" in text
    assert "| tests | failed | 3 failed |" in text
    assert "\n### Found\n\n| what | how much |\n|---|---|\n| tensorrt | 1 |\n" in text


def test_notes_and_cells_stay_in_their_line(tool: Any, tmp_path: Path) -> None:
    check(tool, tmp_path, "machine", "build")
    assert "\n- build: a | b c\n" in (tmp_path / "hardware.md").read_text()


def test_a_section_is_skipped_where_one_that_it_needs_failed(
    tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tool.SECTIONS, "sanitizer", tool.Kind("needs one that fails", 1, ("tests",)))
    assert check(tool, tmp_path, "sanitizer", "tests") == 1
    assert report(tmp_path)["sanitizer"]["reason"] == "tests did not pass"
    assert check(tool, tmp_path, "sanitizer") == 0  # the exit code does not count sections of an earlier call


def test_later_section_receives_earlier_results(tool: Any, tmp_path: Path) -> None:
    results = tmp_path / "results"
    check(tool, tmp_path, "rates", "--minutes", "0.03")
    check(tool, tmp_path, "generate")
    check(tool, tmp_path, "generate", "step", "--minutes", "5")
    arguments = report(tmp_path)["generate"]["figures"]["arguments"]
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert 280 < float(options.pop("--seconds")) <= 290
    assert options == {
        "--output": str(results / "generate.json"),
        "--work": str(results / "generate"),
        "--earlier": str(results / "generate.earlier.json"),
        "--rates": str(results / "rates.json"),
    }
    assert json.loads((results / "generate.earlier.json").read_text())["tables"]
    step = report(tmp_path)["step"]["figures"]["arguments"]
    assert step == ["--output", str(results / "step.json"), "--work", str(results / "generate")]


def test_earlier_results_stay_where_a_section_does_not_begin(tool: Any, tmp_path: Path) -> None:
    check(tool, tmp_path, "tensorrt")
    before = report(tmp_path)
    assert check(tool, tmp_path, "tensorrt", "--minutes", "0.001") == 0
    assert report(tmp_path) == before


def test_no_time_left(tool: Any, tmp_path: Path) -> None:
    assert check(tool, tmp_path, "machine", "--minutes", "0.001") == 0
    assert (report(tmp_path)["machine"]["outcome"], report(tmp_path)["machine"]["reason"]) == (
        "skipped",
        "no time was left",
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["machines"], "error: no section 'machines'; expected some of machine, build, tests"),
        (["machine", "--minutes", "0"], "error: --minutes 0 leaves no time; pass more than 0"),
        (["machine", "--minutes", "nan"], "error: --minutes nan leaves no time; pass more than 0"),
        (["machine", "--minutes", "-1"], "error: --minutes -1 leaves no time; pass more than 0"),
    ],
)
def test_wrong_arguments_are_refused(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert check(tool, tmp_path, *arguments) == 2
    assert said in capsys.readouterr().err


def test_results_are_found_from_any_folder(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hardware.md").write_text("# What ran where\n")
    assert not tool.app(["machine", "--results", "some/where", "--hardware", "hardware.md"], standalone_mode=False)
    assert json.loads(Path("some/where/gpu_check.json").read_text())["machine"]["figures"]["gpu"] == "Some GPU"


@pytest.mark.parametrize(
    ("results", "hardware", "said"),
    [
        ("file", "hardware.md", "File exists"),
        ("file/below", "hardware.md", "Not a directory"),
        ("results", "none.md", "No such file or directory: '{folder}/none.md'"),
        ("results", "binary.md", "can't decode byte"),
    ],
)
def test_unwritable_output_is_an_error(
    tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], results: str, hardware: str, said: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "hardware.md").write_text("")
    (tmp_path / "binary.md").write_bytes(b"\xff\xfe")
    arguments = ["machine", "--results", str(tmp_path / results), "--hardware", str(tmp_path / hardware)]
    assert tool.app(arguments, standalone_mode=False) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and said.format(folder=tmp_path) in line and "--results" in line


def test_two_checks_do_not_write_to_one_folder(tool: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(tool, tmp_path, "machine")
    with tool._locked(tmp_path / "results"):
        assert check(tool, tmp_path, "machine") == 2
    assert "error: another check is writing to" in capsys.readouterr().err
    assert check(tool, tmp_path, "machine") == 0


BROKEN = ["", '{"figures": {"gpu"', "[]", "3", '{"figures": {}, "tables": [{"title": 1}], "notes": []}', "\x00\x01"]
BROKEN += ['{"figures": {}, "tables": [{"title": "a", "columns": ["b"], "rows": [[1]]}], "notes": []}']


@pytest.mark.parametrize("content", BROKEN)
@pytest.mark.parametrize("file", ["build.json", "build.section.json"])
def test_broken_files_are_reported_and_isolated(tool: Any, tmp_path: Path, file: str, content: str) -> None:
    check(tool, tmp_path, "build")
    (tmp_path / "results" / file).write_text(content)
    assert check(tool, tmp_path, "machine") == 0
    found = report(tmp_path)
    assert found["machine"]["tables"]
    reports = [*found["build"]["notes"], found["build"]["reason"]]
    assert any(line.startswith(f"{file} is ") for line in reports)
    assert check(tool, tmp_path, "build") == 0
    assert report(tmp_path)["build"]["outcome"] == "passed"


def test_a_section_of_another_version_is_unreadable(tool: Any, tmp_path: Path) -> None:
    check(tool, tmp_path, "build")
    path = tmp_path / "results" / "build.section.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "some"}))
    check(tool, tmp_path, "machine")
    assert report(tmp_path)["build"]["outcome"] == "unreadable"


def test_processes_of_a_section_end_with_it(tool: Any, tmp_path: Path) -> None:
    body = f"subprocess.Popen(['sleep', '600'], cwd={str(tmp_path)!r})"
    write_section(tmp_path, "tests", body)
    assert check(tool, tmp_path, "tests") == 0
    end = time.monotonic() + 20  # killed, it is gone a moment later
    while any(reads_as(link, tmp_path) for link in Path("/proc").glob("[0-9]*/cwd")):
        assert time.monotonic() < end
        time.sleep(0.05)


def reads_as(link: Path, folder: Path) -> bool:
    try:
        return link.readlink() == folder
    except OSError:
        return False


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
def test_the_reason_of_a_failure_is_one_line_of_the_log(tool: Any, said: str, reason: str) -> None:
    assert tool.reason_of(said) == reason


def test_a_long_log_is_not_read_whole(tool: Any, tmp_path: Path) -> None:
    body = "sys.stdout.buffer.write(b'\\xff\\x00' * 2**22 + b'\\nthe end\\n'); sys.stdout.flush(); sys.exit(3)"
    write_section(tmp_path, "tests", body)
    assert check(tool, tmp_path, "tests") == 1
    assert report(tmp_path)["tests"]["reason"] == "the end"


def test_without_a_gpu_the_document_is_unchanged(tool: Any, tmp_path: Path) -> None:
    body = "skip('this machine has no NVIDIA GPU')"
    write_section(tmp_path, "machine", body)
    assert check(tool, tmp_path, "machine") == 0
    assert (tmp_path / "hardware.md").read_text() == "# What ran where\n\n## A CPU\n\nall of it\n"


def test_documents_with_any_line_ends(tool: Any, tmp_path: Path) -> None:
    hardware = tmp_path / "hardware.md"
    hardware.write_bytes(b"# What ran where\r\n\r\n## A CPU\r\n\r\nall of it")
    check(tool, tmp_path, "machine")
    text = hardware.read_text()
    own = (tmp_path / "results" / "gpu_check.md").read_text()
    assert text == "# What ran where\n\n## A CPU\n\nall of it\n\n" + own
    hardware.write_text(text + "\n" + own)
    check(tool, tmp_path, "machine")
    assert hardware.read_text().count("## Some GPU (20") == 1


def test_hardware_document_has_one_section_for_each_gpu(tool: Any, tmp_path: Path) -> None:
    body = "results.figure('gpu', 'A | GPU\\n## of two'); results.figure('driver', 'a\\nb')"
    write_section(tmp_path, "machine", body)
    check(tool, tmp_path, "machine")
    check(tool, tmp_path, "machine")
    text = (tmp_path / "hardware.md").read_text()
    assert text.count("\n## A | GPU ## of two (20") == 1 and "\ndriver a b.\n" in text


def test_a_stopped_check_reports_what_it_has(tmp_path: Path) -> None:
    """A check that is stopped, by hand or with the machine, reports the results so far."""
    for name, body in {**BODIES, "build": BODIES["rates"]}.items():
        write_section(tmp_path, name, body)
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tools import gpu_check\n"
    start += "gpu_check.SECTION_MODULES = 'sections'; sys.argv[1:] = ['machine', 'build', '--rehearse', "
    start += f"'--results', {str(tmp_path / 'results')!r}]; gpu_check.main()"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", start], stderr=subprocess.PIPE, cwd=ROOT.parent, env=environment)
    log = tmp_path / "results" / "build.log"
    end = time.monotonic() + 60
    while not (log.exists() and b"started" in log.read_bytes()):
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode != 0
    found = report(tmp_path)
    assert found["machine"]["outcome"] == "passed"
    assert (found["build"]["outcome"], found["build"]["reason"]) == ("stopped", "the check was stopped while this ran")
    assert found["build"]["tables"][0]["rows"] == [["build", "1"]]
    assert not processes_of(tmp_path)
