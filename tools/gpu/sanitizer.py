"""Section "sanitizer" of gpu_check.py: compute-sanitizer over our kernels, which it slows down a hundredfold.

It runs the tests of every case of every operator in float16, as many as time allows: pytest ends by itself, so that
the tool prints its summary.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tools.gpu._process import ROOT, Found

TOOLS: Mapping[str, tuple[str, ...]] = {
    "memcheck": ("--report-api-errors", "no"),  # cuda-bindings asks the driver for functions that it does not have
    "racecheck": (),
    "synccheck": (),
    "initcheck": (),
}
"""The tools, each with its options."""
SECONDS, GRACE_SECONDS = 55, 12
"""Seconds for each tool, and then for its summary."""
CHOSEN = "test_cases and float16"
FOUND_ERRORS, INTERRUPTED = 86, 2
"""Exit codes: of the tool, and of pytest."""
PYTEST = """
import ctypes, signal, sys
import pytest
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # as its parent, the tool, is killed
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.alarm(int(sys.argv[1]))
sys.exit(pytest.main(sys.argv[2:]))
"""
SUMS = re.compile(r"(?:ERROR SUMMARY: |RACECHECK SUMMARY: \d+ hazards? displayed \()(\d+) error.*")
PASSED = re.compile(r"\b(\d+) passed")


def run(folder: str, rehearse: bool, seconds: float) -> Iterator[Found]:
    """Run the tools, all at once: each of them waits for the host most of the time."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        raise SystemExit("skipped: compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    if rehearse:
        raise SystemExit("skipped: compute-sanitizer needs a GPU; on the host shim AddressSanitizer takes its place")
    failures = []
    with ThreadPoolExecutor(len(TOOLS)) as pool:
        for tool, (code, text) in zip(TOOLS, pool.map(partial(_look, sanitizer), TOOLS), strict=True):
            print(text, flush=True)
            cases, errors, last = read_output(text)
            yield "compute-sanitizer", {"tool": tool, "cases": cases, "errors": errors, "output": last}
            if failure := error_of(code, cases, errors):
                failures.append(f"{tool}: {failure}")
    if failures:
        raise SystemExit(f"error: {'; '.join(failures)}")


def _look(sanitizer: str, tool: str) -> tuple[int | None, str]:
    """The exit code of a tool over the tests, None if it had to be killed; and what it printed."""
    # Without conftest.py, and so without torch, whose kernels would be checked too.
    tests = ["--noconftest", "-x", "-q", "-m", "gpu", "-k", CHOSEN, "tests/plugins/test_kernels_on_gpu.py"]
    command = [sanitizer, "--tool", tool, *TOOLS[tool], "--error-exitcode", str(FOUND_ERRORS)]
    command += [sys.executable, "-c", PYTEST, str(SECONDS), "-W", "default", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=SECONDS + GRACE_SECONDS)
    except subprocess.TimeoutExpired as error:
        return None, ((error.stdout or b"") + (error.stderr or b"")).decode(errors="replace")
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def read_output(printed: str) -> tuple[int, str, str]:
    """Passed cases; errors, or "-" if there is no summary; and the last line."""
    sums = SUMS.findall(printed)
    lines = [line.strip("= ") for line in printed.splitlines() if line.startswith("=========") and line.strip("= ")]
    cases = sum(int(count) for count in PASSED.findall(printed)[-1:])
    return cases, str(sum(map(int, sums))) if sums else "-", lines[-1] if lines else ""


def error_of(code: int | None, cases: int, errors: str) -> str:
    """The error of a run, or an empty string. ``code``: None if the process had to be killed."""
    if errors not in ("-", "0") or code == FOUND_ERRORS:
        return f"{errors} errors"
    if code is None:
        return f"it did not come to its end {GRACE_SECONDS} s after its time"
    if errors == "-":
        return f"it printed no summary (exit code {code})"
    if code not in (0, INTERRUPTED):
        return f"the tests ended with exit code {code}"
    return "" if cases else "no case was looked at"
