"""Section "tests" of gpu_check.py: the tests with the marker `gpu`, file by file, so that a crash is isolated."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tools.gpu._results import Results

ROOT = Path(__file__).resolve().parents[2]
TITLE = "Tests on the GPU"
COLUMNS = ("file", "passed", "failed", "skipped", "seconds")
IN_PARALLEL = "test_kernels_on_gpu.py"
"""Compiles a kernel for most of its cases, seconds each, and caches it on disk."""
PROCESSES = 8
REHEARSED = ("tests/deploy/runtimes/test_cuda.py",)
"""Without a GPU every test of the GPU is skipped, so that another file must show that tests run."""
MOST_NOTES = 5
SECONDS = 200
"""Time limit of one file, in seconds, so that a hanging test does not take the time of the others."""


def main(
    output: Annotated[Path, typer.Option(help="File for the results.")],
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Without a GPU: run a file that needs none; all others are skipped.")
    ] = False,
) -> None:
    results = Results(output)
    files = [
        (str(path.relative_to(ROOT)), ["-m", "gpu"]) for path in sorted((ROOT / "tests").rglob("test_*_on_gpu.py"))
    ]
    if importlib.util.find_spec("xdist") and not rehearse:
        files = [(file, [*own, "-n", str(PROCESSES)] if file.endswith(IN_PARALLEL) else own) for file, own in files]
    if rehearse:
        files += [(file, []) for file in REHEARSED]
    run_files(files, output.with_suffix(".xml"), results)


def run_files(files: Sequence[tuple[str, list[str]]], report: Path, results: Results) -> None:
    """Run files, each with its options."""
    counts = [run_file(file, options, report, results) for file, options in files]
    passed, failed = (sum(column) for column in zip(*counts, strict=True))
    results.figure("passed", passed)
    results.figure("failed", failed)
    if failed:
        raise SystemExit(f"error: {failed} failed")
    if not passed:
        raise SystemExit("error: every test was skipped; the notes say why")


def run_file(file: str, options: list[str], report: Path, results: Results) -> tuple[int, int]:
    """Run one file; counts of passed and failed tests. A file that does not end counts as one failure."""
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *options, file]
    command += ["-W", "default"]  # other versions of our dependencies may give other warnings
    try:
        ended = f"exit code {subprocess.run(command, cwd=ROOT, check=False, timeout=SECONDS).returncode}"
    except subprocess.TimeoutExpired:
        ended = f"stopped after {SECONDS} s"
    if not report.exists():
        results.row(TITLE, COLUMNS, (file, "-", "-", "-", "-"))
        results.note(f"{file} did not come to its end: {ended}")
        return 0, 1
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    seconds = float(suite.get("time", 0))
    results.row(TITLE, COLUMNS, (file, passed, failed, counts["skipped"], f"{seconds:.0f}"))
    said = 0
    for case in suite.iter("testcase"):
        for kind in ("failure", "error"):
            found = case.find(kind)
            if found is not None and said < MOST_NOTES:
                said += 1
                first = (found.get("message") or "no message").strip().splitlines()[0]
                results.note(f"{kind}: {file}::{case.get('name')}: {first[:300]}")
    reasons = {
        str(found.get("message")) for case in suite.iter("testcase") if (found := case.find("skipped")) is not None
    }
    for reason in sorted(reasons)[:MOST_NOTES]:
        results.note(f"skipped in {file}: {reason[:300]}")
    return passed, failed


if __name__ == "__main__":
    typer.run(main)
