"""The GPU check: builds, tests and benchmarks of everything that claims to run on a GPU, on the GPU of this machine.

    python tools/gpu_check.py                    # all sections
    python tools/gpu_check.py kernels generate   # some
    python tools/gpu_check.py --rehearse         # on a machine without a GPU: the same scripts, small, on the CPU

Each section runs in a process of its own within a time limit, and writes its results at once: they survive a crash, the
limit or Ctrl-C, and later sections join earlier ones. --results gets gpu_check.json, gpu_check.md and a log of each
section; docs/hardware.md gains the dated section.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[1]
PATHS = (str(ROOT), str(ROOT / "tools" / "namespace"))
"""Import paths of the sections: `tools`, and `tightbeam` if it is not installed."""
sys.path[:0] = [path for path in PATHS if path not in sys.path]

from tightbeam.deploy.console import command_line, say  # noqa: E402
from tightbeam.plugins.tensorrt.compiler import CACHE  # noqa: E402
from tools.gpu._report import Section, write_report, write_section  # noqa: E402
from tools.gpu._results import SKIPPED  # noqa: E402

SECTION_MODULES = "tools.gpu"
RESULTS = ROOT / "build" / "gpu-check"
GRACE_SECONDS = 10.0
"""Between asking a section to end and killing it."""
SAID_BYTES = 2**16
"""Bytes at the end of a log in which the reason of a failure is searched."""
PR_SET_PDEATHSIG = 1
C_LIBRARY = ctypes.CDLL(None)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Kind:
    """A section: its purpose, and its time limit on a GPU in minutes. ``needs``: sections whose failure makes it
    pointless. ``work``: the folder below the results for large files. ``resumes``: True if it continues from earlier
    results, and ends by itself when its time is over.
    """

    purpose: str
    minutes: float
    needs: tuple[str, ...] = ()
    work: str | None = None
    resumes: bool = False


SECTIONS: Mapping[str, Kind] = {
    "machine": Kind("GPU, driver, versions", 1),
    "build": Kind("the CUDA library, for this GPU", 8, ("machine",)),
    "tests": Kind("pytest -m gpu", 8, ("build",)),
    "sanitizer": Kind("compute-sanitizer over the kernels", 5, ("build",)),
    "rates": Kind("bandwidth and matrix rate", 2, ("machine",)),
    "kernels": Kind("the kernels next to their floors and peers", 8, ("build",)),
    "generate": Kind("whole generations next to transformers", 25, ("build",), work="generate", resumes=True),
    "step": Kind("a decode step: copies, gaps, CUDA graph", 5, ("build",), work="generate"),
    "tensorrt": Kind("an engine for compute capability 8.0 on this GPU", 4, ("machine",), work="tensorrt"),
}


@app.command()
def gpu_check(
    sections: Annotated[
        list[str] | None, typer.Argument(help=f"Sections to run, of: {', '.join(SECTIONS)}; all by default.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for the results; earlier results in it are kept.")] = RESULTS,
    minutes: Annotated[
        float | None, typer.Option(help="Minutes for all sections together; each section gets at most the rest.")
    ] = None,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Without a GPU: run small, on the CPU.")] = False,
    hardware: Annotated[Path, typer.Option(help="Markdown file that gains the dated section.")] = ROOT
    / "docs/hardware.md",
) -> None:
    """Run the checks, and write down what passed, what failed and what was skipped."""
    wanted = sections or list(SECTIONS)
    if unknown := [name for name in wanted if name not in SECTIONS]:
        say(f"error: no section {unknown[0]!r}; expected some of {', '.join(SECTIONS)}")
        raise typer.Exit(2)
    if minutes is not None and not minutes > 0:
        say(f"error: --minutes {minutes:g} leaves no time; pass more than 0")
        raise typer.Exit(2)
    if rehearse and results == RESULTS:
        results = RESULTS.with_name("gpu-rehearsal")
    results = results.resolve()  # the sections run in another folder
    end = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    chosen = [name for name in SECTIONS if name in wanted]  # in the order of the table, whatever was typed
    try:
        if not rehearse:
            hardware.read_text(encoding="utf-8")
        with _locked(results):
            passed = _run_all(chosen, results, end, None if rehearse else hardware)
    except (OSError, UnicodeDecodeError) as error:
        say(f"error: {error}; expected a folder to write in (--results) and a text file (--hardware)")
        raise typer.Exit(2) from error
    say(f"written: {results / 'gpu_check.json'}, {results / 'gpu_check.md'}")
    if not passed:
        raise typer.Exit(1)


@contextmanager
def _locked(results: Path) -> Iterator[None]:
    """Lock the results: two checks on one GPU would disturb each other's times. The lock ends with the process."""
    results.mkdir(parents=True, exist_ok=True)
    with (results / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            say(f"error: another check is writing to {results}; wait for it, or name another folder: --results")
            raise typer.Exit(2) from error
        yield


def _run_all(names: Sequence[str], results: Path, end: float, hardware: Path | None) -> bool:
    """Run sections; True if none failed. ``end``: of ``time.monotonic``; ``hardware``: None for a rehearsal."""
    outcomes: dict[str, Section] = {}
    for name in names:
        limit = min(60 * SECTIONS[name].minutes, end - time.monotonic())
        try:
            outcomes[name] = section = _run(name, results, limit, outcomes, rehearse=hardware is None)
        finally:
            write_report(results, SECTIONS, hardware)
        say(f"{name:<10} {section.outcome:<10} {section.seconds:6.1f} s  {section.reason}".rstrip())
    return all(section.outcome in ("passed", "skipped") for section in outcomes.values())


def _run(name: str, results: Path, limit: float, before: Mapping[str, Section], *, rehearse: bool) -> Section:
    """Run one section; its file holds the outcome before and after."""
    section = Section(
        name=name,
        command=f"python tools/gpu_check.py {name}{' --rehearse' if rehearse else ''}",
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        outcome="stopped",
        reason="the check was stopped while this ran",
        seconds=0.0,
    )
    failed = [need for need in SECTIONS[name].needs if need in before and before[need].outcome != "passed"]
    if failed:
        section = section.ended("skipped", f"{failed[0]} did not pass", 0.0)
    elif limit < 1:
        section = section.ended("skipped", "no time was left", 0.0)
    if section.outcome == "skipped":
        if not (results / f"{name}.section.json").exists():  # what an earlier run came to stays
            write_section(results, section)
        return section
    command = _command(name, results, limit)
    command += ["--rehearse"] if rehearse else []
    write_section(results, section)
    start = time.monotonic()
    outcome, reason = _within(command, results / f"{name}.log", limit)
    section = section.ended(outcome, reason, time.monotonic() - start)
    write_section(results, section)
    return section


def _command(name: str, results: Path, limit: float) -> list[str]:
    """The command of a section; its output of an earlier run is moved or removed."""
    kind, output = SECTIONS[name], results / f"{name}.json"
    command = [sys.executable, "-m", f"{SECTION_MODULES}.{name}", "--output", str(output)]
    if kind.work:
        command += ["--work", str(results / kind.work)]
    if not kind.resumes:
        output.unlink(missing_ok=True)
        return command
    earlier, rates = results / f"{name}.earlier.json", results / "rates.json"
    if output.exists():
        output.replace(earlier)
    command += ["--seconds", f"{max(1.0, limit - GRACE_SECONDS):.0f}"]
    for option, path in (("--earlier", earlier), ("--rates", rates)):
        command += [option, str(path)] if path.exists() else []
    return command


def _within(command: Sequence[str], log: Path, limit: float) -> tuple[str, str]:
    """Run a command; the outcome and the reason. All processes that it started end with it."""
    path = os.pathsep.join((*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "TYPER_STANDARD_TRACEBACK": "1"}
    environment.setdefault(CACHE, str(log.parent / "cache"))  # else the tests compile the same kernels again and again
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
            process_group=0,
            preexec_fn=_end_with_parent,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            _ask_to_end(process)
            return "timed out", f"after {limit:.0f} s; what it had found is kept"
        except KeyboardInterrupt:
            _ask_to_end(process)
            raise
        finally:
            _signal_all(process, signal.SIGKILL)  # what it left behind would hold the GPU's memory
            process.wait()
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - SAID_BYTES))
        printed = reason_of(stream.read().decode(errors="replace"))
    if code == 0:
        return "passed", ""
    if code == SKIPPED:
        return "skipped", printed.removeprefix("skipped: ")
    if code < 0:
        return "failed", f"killed by {signal.Signals(-code).name}; see {log}"
    return "failed", printed.removeprefix("error: ")[:200] or f"exit code {code}, and nothing printed"


def reason_of(printed: str) -> str:
    """The line of a section's output that gives its end: its own last word, or the first line of the last traceback's
    error, else the last line.
    """
    lines = [line for line in printed.splitlines() if any(map(str.isalnum, line))]
    if lines and not lines[-1].startswith(("error: ", "skipped: ")):
        tracebacks = [index for index, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
        errors = [line for line in lines[tracebacks[-1] + 1 :] if not line.startswith(" ")] if tracebacks else []
        return errors[0] if errors else lines[-1].strip()
    return lines[-1] if lines else ""


def _end_with_parent() -> None:
    """Arrange that this process ends with its parent, even if that is killed (Linux)."""
    C_LIBRARY.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    _signal_all(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)


def _signal_all(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def main() -> None:
    command_line(app, "gpu_check.py")


if __name__ == "__main__":
    main()
