"""Section "tests" of gpu_check.py: the tests with the marker `gpu`, file by file, so that a crash is isolated. The
tests of a file run at once, since most of them wait for a compiler or a trace.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools.gpu._process import ROOT, Found

PROCESSES = "8"
REHEARSED = "tests/deploy/runtimes/test_cuda.py"
"""Without a GPU every test of the GPU is skipped, so that another file must show that tests run."""
MOST_NOTES = 5
SECONDS = 200
"""Time limit of one file, in seconds, so that a hanging test does not take the time of the others."""


def run(folder: str, rehearse: bool, seconds: float) -> Iterator[Found]:
    """Run the files for a GPU."""
    paths = sorted((ROOT / "tests").rglob("test_*_on_gpu.py"))
    files: dict[str, list[str]] = {str(path.relative_to(ROOT)): ["-m", "gpu"] for path in paths}
    if rehearse:
        files[REHEARSED] = []
    elif importlib.util.find_spec("xdist"):
        for file in files:
            files[file] += ["-n", PROCESSES]
    yield from run_files(files, Path(folder, "tests.xml"))


def run_files(files: Mapping[str, Sequence[str]], report: Path) -> Iterator[Found]:
    """Run files, each with its options. A file that does not end counts as one failure."""
    passed = failed = 0
    for file, options in files.items():
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += ["-W", "default", *options, file]  # other versions of dependencies may give other warnings
        try:
            ended = f"exit code {subprocess.run(command, cwd=ROOT, check=False, timeout=SECONDS).returncode}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {SECONDS} s"
        suite = ElementTree.parse(report).getroot().find("testsuite") if report.exists() else None
        if suite is None:
            failed += 1
            yield "Tests on the GPU", {"file": file}
            yield f"{file} did not come to its end: {ended}"
            continue
        tests, *others = (int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped"))
        counts = {"passed": tests - sum(others), "failed": others[0] + others[1], "skipped": others[2]}
        passed, failed = passed + counts["passed"], failed + counts["failed"]
        yield "Tests on the GPU", {"file": file, **counts, "seconds": round(float(suite.get("time", 0)))}
        said = [
            (kind, f": {file}::{case.get('name')}" if kind != "skipped" else f" in {file}", found.get("message"))
            for kind in ("failure", "error", "skipped")
            for case in suite.iter("testcase")
            if (found := case.find(kind)) is not None
        ]
        for kind, where, message in list(dict.fromkeys(said))[:MOST_NOTES]:
            yield f"{kind}{where}: {(message or 'no message').strip().partition(chr(10))[0][:300]}"
    if failed:
        raise SystemExit(f"error: {failed} failed")
    if not passed:
        raise SystemExit("error: every test was skipped; the notes say why")
