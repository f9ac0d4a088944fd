"""A function that yields what it finds, in a process of its own: a section of `gpu_check.py`, or a part of one.

    python -m tools.gpu._process tools.gpu.rates:run '{"folder": ".", "rehearse": true, "seconds": 60}' rates.jsonl

Every finding becomes a line of JSON at once, so that a crash or the time limit loses the row that was being measured
and nothing else. The last line is null if the function came to its end.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightbeam.plugins.tensorrt.compiler import CACHE

__all__ = [
    "OUT_OF_MEMORY",
    "PASSED",
    "ROOT",
    "SKIPPED",
    "TIMED_OUT",
    "Ended",
    "Found",
    "failed",
    "read",
    "rows",
    "run",
    "tried",
]

Row = tuple[str, Mapping[str, Any]]
"""The title of a table, and cells by column. Lists among the cells are not printed."""
Found = Row | str
"""A row or a note."""
ROOT = Path(__file__).resolve().parents[2]
PATHS = (str(ROOT), str(ROOT / "tools" / "namespace"))
PASSED, FAILED, SKIPPED, TIMED_OUT, OUT_OF_MEMORY = "passed", "failed", "skipped", "timed out", "out of memory"
LOG_BYTES = 2**16
"""Bytes at the end of a log in which the reason of a failure is searched."""
PR_SET_PDEATHSIG = 1
NO_MEMORY = (
    *("out of memory", "no memory", "failed to allocate", "smaller than requested bytes", "bad_alloc"),
    *("alloc_failed", "allocation_failed", "cudaerrormemoryallocation", "memoryerror"),
)
"""Lower-case words for exhausted memory: of torch, ONNX Runtime's arena, cuBLAS, CUDA, our engine, Python."""


@dataclass(frozen=True)
class Ended:
    """How a function ended, and why if it did not pass."""

    outcome: str
    reason: str = ""


def run(function: str, arguments: Mapping[str, Any], output: Path, limit_s: float) -> Ended:
    """Append what a function yields to a file; what it prints goes to the ``.log`` beside it. All processes that it
    started end with it.

    Parameters
    ----------
    function : str
        Module and name, ``"tools.gpu.rates:run"``.
    arguments : mapping
        Its arguments by name, as JSON has them.
    output : Path
        File of findings.
    limit_s : float
        Seconds after which it is killed.
    """
    log = output.with_suffix(".log")
    path = os.pathsep.join((*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])))
    environment = {CACHE: str(output.parent / "cache"), **os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.gpu._process", function, json.dumps(arguments), str(output)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
            process_group=0,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return Ended(TIMED_OUT, f"after {limit_s:.3g} s; what it had found is kept")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it left behind would hold the GPU's memory
            process.wait()
    killed = f"killed by {signal.Signals(-code).name}; see {log}" if code < 0 else ""
    if (read(output) or [""])[-1] is None:  # a crash after the last finding spoils nothing
        return Ended(PASSED, killed)
    printed = log.read_bytes()[-LOG_BYTES:].decode(errors="replace")
    reason = killed or reason_of(printed) or f"exit code {code}, and nothing printed"
    if reason.startswith(f"{SKIPPED}: "):
        return Ended(SKIPPED, reason.removeprefix(f"{SKIPPED}: "))
    is_memory = not killed and any(words in printed.lower() for words in NO_MEMORY)
    return Ended(OUT_OF_MEMORY if is_memory else FAILED, reason.removeprefix("error: ")[:200])


def reason_of(printed: str) -> str:
    """The line of a log that gives the end of a process: its own last word, or the error of the last traceback."""
    lines = [line for line in printed.splitlines() if any(map(str.isalnum, line))]
    last = lines[-1].strip() if lines else ""
    if not last.startswith(("error: ", f"{SKIPPED}: ")) and "Traceback (most recent call last)" in printed:
        after = printed.rpartition("Traceback (most recent call last)")[2].splitlines()[1:]
        return next((line for line in after if line and not line.startswith(" ")), last)
    return last


def read(path: Path) -> list[Any]:
    """What a file holds so far; a line that was cut off is left out."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def rows(found: Iterable[Any], title: str) -> list[dict[str, Any]]:
    """The rows of one table."""
    return [each[1] for each in found if isinstance(each, list) and each[0] == title]


def tried(title: str, cells: Mapping[str, Any], work: Callable[[], Mapping[str, Any]]) -> Iterator[Row]:
    """A row with the cells that ``work`` returns, or with the reason of its failure."""
    try:
        yield title, {**cells, **work()}
    except Exception as error:  # a runtime's own classes among them
        yield title, {**cells, **failed(error)}


def failed(error: Exception) -> dict[str, str]:
    """A cell with the reason of a failure."""
    return {"failed": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}


def main(function: str, arguments: str, output: str) -> None:
    """The side of the process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # end with the parent, even if that is killed (Linux)
    module, _, name = function.partition(":")
    with Path(output).open("a", encoding="utf-8") as lines:
        for found in getattr(importlib.import_module(module), name)(**json.loads(arguments)):
            print(json.dumps(found), file=lines, flush=True)
        print("null", file=lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
