"""Sections of the GPU check without a GPU: `sanitizer`, `speech`, `step` and `tests`."""

from __future__ import annotations

import itertools
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from support.runtimes import session_in_memory
from tightbeam.export import export_model
from tools.gpu import sanitizer, speech, step, tests
from tools.gpu._generate import make

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.mark.slow
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


def test_a_variant_that_fails_is_a_row_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variant in ("el", "kcache"):
        make.bundle_folder(tmp_path / "generate", variant, step.PRECISION).mkdir(parents=True)
    found = []
    with pytest.raises(SystemExit, match="error: a step failed or does what it should not: el, kcache"):
        for row in step.run(str(tmp_path), False, 60.0):
            found.append(row)
    assert [(row[1]["variant"], row[1]["failed"].partition(":")[0]) for row in found] == [
        ("el", "BundleError"),
        ("kcache", "BundleError"),
    ]


@pytest.mark.slow
def test_tests_that_hang_take_no_time_from_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tests, "SECONDS", 3)
    hangs, warns, skips = (tmp_path / f"test_{name}.py" for name in ("hangs", "warns", "skips"))
    hangs.write_text("import time\ndef test_hangs(): time.sleep(60)\n")
    warns.write_text("import warnings\ndef test_warns(): warnings.warn('of another version', stacklevel=1)\n")
    skips.write_text("import pytest\ndef test_skips(): pytest.skip('no GPU')\n")
    files = {str(path): ["-c", str(ROOT / "pyproject.toml")] for path in (hangs, warns, skips)}
    found = tests.run_files(files, tmp_path / "tests.xml")
    assert next(found) == ("Tests on the GPU", {"file": str(hangs)})
    assert next(found) == f"{hangs} did not come to its end: stopped after 3 s"
    monkeypatch.setattr(tests, "SECONDS", 60)
    assert next(found)[1] | {"seconds": 0} == {
        **{"file": str(warns), "passed": 1, "failed": 0, "skipped": 0, "seconds": 0}
    }
    assert next(found)[1]["skipped"] == 1
    assert next(found) == f"skipped in {skips}: no GPU"
    with pytest.raises(SystemExit, match="error: 1 failed"):
        next(found)
    with pytest.raises(SystemExit, match="error: every test was skipped"):
        list(tests.run_files({str(skips): []}, tmp_path / "tests.xml"))


def test_section_step_in_a_rehearsal(tmp_path: Path) -> None:
    """The demo model over plain memory; one event takes a microsecond."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        bundle = export_model("demo", tmp_path / "dedup", variant="dedup", check=False)
        made = session_in_memory.in_memory(bundle.path)

    def profiled(work: Any) -> list[step.Event]:
        found = enumerate(session_in_memory.events_in_memory(made.cuda, work))
        return [step.Event(kind, float(at), 1.0, nbytes) for at, (kind, nbytes) in found]

    found = step.measure("dedup", lambda: (made.runtime, bundle, profiled), [3], 16, 5)
    steps = [row for title, row in found if title.startswith("A decode step")]
    assert [(row["variant"], row["batch"], row["as"]) for row in steps] == [
        ("dedup", 3, "single kernels"),
        ("dedup", 3, "a CUDA graph"),
    ]
    for row in steps:
        assert (row["copies to the GPU"], row["copies back"], row["copies back, bytes"]) == (2, 3, 480)
        assert step.WRONG not in row


@pytest.mark.slow
def test_both_sides_transcribe_every_window(tmp_path: Path) -> None:
    found = [each[1] for each in speech.run(str(tmp_path), True, 300) if each[0] == speech.TITLE]
    sides = [(row["side"], row["beams"]) for row in found]
    assert sides == list(itertools.product(("tightbeam", "transformers"), speech.BEAMS))
    for row in found:
        assert row["seconds"] > row["encoder s"] > 0
        assert row["real-time factor"] == pytest.approx(row["batch"] * speech.WINDOW_S / row["seconds"])
