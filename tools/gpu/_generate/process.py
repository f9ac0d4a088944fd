"""One measurement in a process of its own, with its results or the way it ended; others are isolated from it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["DONE", "LATE", "OUT_OF_MEMORY", "Ended", "run_case", "serve_case"]

DONE = "done"
OUT_OF_MEMORY = "out of memory"
LATE = "over its limit"
FAILED = "failed"
PR_SET_PDEATHSIG = 1
NO_MEMORY = (
    *("out of memory", "no memory", "failed to allocate", "smaller than requested bytes", "bad_alloc"),
    *("alloc_failed", "allocation_failed", "cudaerrormemoryallocation", "memoryerror"),
)
"""Lower-case words for exhausted memory: of torch, ONNX Runtime's arena, cuBLAS, CUDA, our engine, Python."""


@dataclass(frozen=True)
class Ended:
    """The end of a case. ``how``: DONE, OUT_OF_MEMORY, FAILED, "killed by SIGKILL" or the like, or "over its limit of
    60 s". ``detail``: the first lines of the error, or the last line that the process printed. ``found``: its results
    up to then.
    """

    how: str
    detail: str = ""
    found: Mapping[str, Any] = field(default_factory=dict)


def run_case(module: str, request: Mapping[str, Any], folder: Path, limit_s: float) -> Ended:
    """Run ``python -m module REQUEST RESULT`` and read what it wrote (``serve_case``). ``folder``: for both files.

    After ``limit_s`` seconds the process is killed with all that it started.
    """
    asked, written = folder / "request.json", folder / "result.json"
    written.unlink(missing_ok=True)
    asked.write_text(json.dumps(request), encoding="utf-8")
    with tempfile.TemporaryFile() as printed:
        command = [sys.executable, "-m", module, str(asked), str(written)]
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT, process_group=0)
        try:
            code = process.wait(limit_s)
            stopped = f"killed by {signal.Signals(-code).name}" if code < 0 else ""
        except subprocess.TimeoutExpired:
            stopped = f"{LATE} of {limit_s:g} s"
        finally:
            _kill_all(process)
        printed.seek(0)
        lines = printed.read().decode(errors="replace").strip().splitlines()
    found = _read(written)
    how = str(found.pop("how", stopped or FAILED))  # a reported result counts, even after a crash
    if how == DONE:
        return Ended(DONE, found=found)
    return Ended(how, str(found.pop("detail", "")) or (lines[-1] if lines else ""), found)


def serve_case(work: Callable[[Mapping[str, Any], Callable[[Mapping[str, Any]], None]], None]) -> None:
    """The side of the process: call ``work`` with the request and with ``report``, which writes results."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # end with the parent (Linux)
    asked, written = (Path(argument) for argument in sys.argv[1:3])
    found: dict[str, Any] = {}

    def report(more: Mapping[str, Any]) -> None:
        found.update(more)
        draft = written.with_suffix(".draft")
        draft.write_text(json.dumps(found), encoding="utf-8")
        draft.replace(written)

    try:
        work(json.loads(asked.read_text(encoding="utf-8")), report)
        report({"how": DONE})
    except Exception as error:  # any error of a peer or a runtime is the result of this case
        report({"how": _how(error), "detail": _first_lines(error)})
        raise SystemExit(1) from error


def _how(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        text = f"{type(cause).__name__}: {cause}".lower()
        if any(words in text for words in NO_MEMORY):
            return OUT_OF_MEMORY
        cause = cause.__cause__ or cause.__context__
    return FAILED


def _first_lines(error: BaseException) -> str:
    """The first two lines of an error: the first line of a compiler's error has no reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2]) or 'no reason given'}"


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and all that it started, compilers too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found
