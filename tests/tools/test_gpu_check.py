"""`tools/gpu_check.py`: outcomes of sections that pass, fail, hang, are killed or are stopped; and the report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from tools import gpu_check
from tools.gpu import _results, sanitizer, step, tests

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


SANITIZED = "========= COMPUTE-SANITIZER\n12 passed, 3 deselected in 50.00s\n========= {}\n"


@pytest.mark.parametrize(
    ("said", "code", "row", "failure"),
    [
        ("ERROR SUMMARY: 0 errors", 0, (12, "0"), ""),
        ("ERROR SUMMARY: 0 errors", 2, (12, "0"), ""),
        ("ERROR SUMMARY: 1 error", 86, (12, "1"), "1 errors"),
        ("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0, (12, "0"), ""),
        ("RACECHECK SUMMARY: 3 hazards displayed (2 errors, 1 warning)", 86, (12, "2"), "2 errors"),
        ("RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", 0, (12, "1"), "1 errors"),
        ("Error: Device not supported", 255, (12, "-"), "it printed no summary (exit code 255)"),
        ("ERROR SUMMARY: 0 errors", 1, (12, "0"), "the tests ended with exit code 1"),
        ("ERROR SUMMARY: 0 errors", None, (12, "0"), "it did not come to its end 12 s after its time"),
    ],
)
def test_output_of_compute_sanitizer(
    monkeypatch: pytest.MonkeyPatch, said: str, code: int | None, row: tuple[int, str], failure: str
) -> None:
    cases, errors, last = sanitizer.read_output(SANITIZED.format(said))
    assert ((cases, errors), last) == (row, said)
    assert sanitizer.error_of(code, cases, errors) == failure
    assert sanitizer.error_of(0, 0, "0") == "no case was looked at"


def test_the_tests_under_compute_sanitizer_end_by_themselves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tests = tmp_path / "test_slow.py"
    tests.write_text("import time\ndef test_quick(): pass\ndef test_slow(): time.sleep(60)\n")
    command = [sys.executable, "-c", sanitizer.PYTEST, "15", "-q", str(tests)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, cwd=tmp_path, check=False)
    assert done.returncode == sanitizer.INTERRUPTED
    assert sanitizer.read_output(done.stdout)[0] == 1


def test_a_profile_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of a trace as torch's profiler writes it."""
    trace = [
        {"ph": "X", "cat": "kernel", "name": "attend<float>", "ts": 10.0, "dur": 4.0, "args": {"stream": 7}},
        {"ph": "X", "cat": "kernel", "name": "other", "ts": 12.5, "dur": 1.0, "args": {}},
        {
            "ph": "X",
            "cat": "gpu_memcpy",
            "name": "Memcpy HtoD (Pinned -> Device)",
            "ts": 0,
            "dur": 2,
            "args": {"bytes": 96},
        },
        {
            "ph": "X",
            "cat": "gpu_memcpy",
            "name": "Memcpy DtoH (Device -> Pinned)",
            "ts": 20,
            "dur": 1,
            "args": {"bytes": 8},
        },
        {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "ts": 19.5, "dur": 1, "args": {"bytes": 7}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1, "dur": 90},
        {"ph": "M", "name": "process_name"},
    ]
    events = step.events_of(trace)
    assert [(event.kind, event.nbytes) for event in events] == [
        ("kernel", 0),
        ("kernel", 0),
        ("HtoD", 96),
        ("DtoH", 8),
        ("memset", 0),
    ]
    assert step.busy_us(events) == 2 + 4 + 1.5


def test_a_variant_that_fails_is_a_note_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:

    def fail() -> Any:
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setattr(step, "_engines", lambda work, precision: iter([("el", fail), ("slim", fail)]))
    output = tmp_path / "step.json"
    with pytest.raises(SystemExit, match="error: el failed: RuntimeError; slim failed: RuntimeError"):
        step.main(output)
    notes = _results.read_results(output)["notes"]
    assert notes == ["el: RuntimeError: out of memory", "slim: RuntimeError: out of memory"]


def test_tests_that_hang_take_no_time_from_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tests, "SECONDS", 3)
    hangs, warns = tmp_path / "test_hangs.py", tmp_path / "test_warns.py"
    hangs.write_text("import time\ndef test_hangs(): time.sleep(60)\n")
    warns.write_text("import warnings\ndef test_warns(): warnings.warn('of another version', stacklevel=1)\n")
    found = _results.Results(tmp_path / "tests.json")
    assert tests.run_file(str(hangs), [], tmp_path / "tests.xml", found) == (0, 1)
    monkeypatch.setattr(tests, "SECONDS", 60)
    assert tests.run_file(str(warns), ["-c", str(ROOT / "pyproject.toml")], tmp_path / "tests.xml", found) == (1, 0)
    content = _results.read_results(tmp_path / "tests.json")
    assert content["notes"] == [f"{hangs} did not come to its end: stopped after 3 s"]
    assert [row[1:3] for row in content["tables"][0]["rows"]] == [["-", "-"], ["1", "0"]]


def test_tests_that_are_all_skipped_are_no_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    skips = tmp_path / "test_skips.py"
    skips.write_text("import pytest\ndef test_skips(): pytest.skip('no GPU')\n")
    found = _results.Results(tmp_path / "tests.json")
    with pytest.raises(SystemExit, match="error: every test was skipped"):
        tests.run_files([(str(skips), [])], tmp_path / "tests.xml", found)


@pytest.mark.parametrize("way", ["in this process", pytest.param("as it runs", marks=pytest.mark.slow)])
def test_section_step_in_a_rehearsal(way: str, tmp_path: Path) -> None:
    """In this process, it shares the demo model's trace with other tests."""
    output = tmp_path / "step.json"
    if way == "as it runs":
        command = [sys.executable, "-m", "tools.gpu.step", "--rehearse", "--output", str(output)]
        subprocess.run(command, check=True, timeout=200, cwd=ROOT)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            step.main(output, rehearse=True)
    found = json.loads(output.read_text())
    steps = next(table for table in found["tables"] if table["title"].startswith("A decode step"))
    assert [row[:3] for row in steps["rows"]] == [
        ["dedup", "3", "single kernels"],
        ["dedup", "3", "a CUDA graph"],
    ]
    for row in steps["rows"]:
        cells = dict(zip(range(len(row)), row, strict=True))
        assert (cells[7], cells[9], cells[10], cells[11]) == ("2", "3", "480", "480")
