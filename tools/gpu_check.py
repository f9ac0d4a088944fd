"""The GPU check: builds, tests and benchmarks of everything that claims to run on a GPU, on the GPU of this machine.

    python tools/gpu_check.py                    # all sections
    python tools/gpu_check.py kernels generate   # some
    python tools/gpu_check.py --rehearse         # on a machine without a GPU: the same scripts, small, on the CPU

Each section is a function ``run`` of a module of ``tools/gpu``, which yields what it finds. It runs in a process of its
own within a time limit, and what it finds is written at once: it survives a crash, the limit or Ctrl-C, and later
sections join earlier ones. --results gets gpu_check.md, and a file of findings and a log of each section;
docs/hardware.md gains the dated section.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "namespace")]

from tightbeam.deploy.console import command_line, say  # noqa: E402
from tools.gpu._process import PASSED, SKIPPED, Ended, read, run  # noqa: E402
from tools.gpu._report import STATE, write_report  # noqa: E402

SECTION_MODULES = "tools.gpu"
RESULTS = ROOT / "build" / "gpu-check"
HARDWARE = ROOT / "docs" / "hardware.md"
RESERVED_S = 10
"""Seconds of a limit that a section that ends by itself leaves."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Kind:
    """A section: its purpose, and its time limit on a GPU in minutes. ``needs``: sections whose failure makes it
    pointless. ``keeps``: titles of the tables whose rows of an earlier run it is given.
    """

    purpose: str
    minutes: float
    needs: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()


SECTIONS: Mapping[str, Kind] = {
    "machine": Kind("GPU, driver, versions", 1),
    "build": Kind("the CUDA library, for this GPU", 8, ("machine",)),
    "tests": Kind("pytest -m gpu", 8, ("build",)),
    "sanitizer": Kind("compute-sanitizer over the kernels", 5, ("build",)),
    "rates": Kind("bandwidth and matrix rate", 2, ("machine",)),
    "kernels": Kind("the kernels next to their floors and peers", 8, ("build",)),
    "generate": Kind(
        "whole generations next to transformers", 25, ("build",), keeps=("Bundles", "Checked", "End to end")
    ),
    "step": Kind("a decode step: copies, gaps, CUDA graph", 5, ("build",)),
    "speech": Kind("real-time factors of Whisper next to transformers", 12, ("build",)),
    "tensorrt": Kind("an engine for compute capability 8.0 on this GPU", 4, ("machine",)),
}


@app.command()
def gpu_check(
    sections: Annotated[
        list[str] | None, typer.Argument(help=f"Sections to run, of: {', '.join(SECTIONS)}; all by default.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder for the results; earlier results in it are kept.")] = RESULTS,
    minutes: Annotated[
        float, typer.Option(help="Minutes for all sections together; each section gets at most the rest.")
    ] = float("inf"),
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Without a GPU: run small, on the CPU.")] = False,
) -> None:
    """Run the checks, and write down what passed, what failed and what was skipped."""
    if unknown := [name for name in sections or () if name not in SECTIONS]:
        say(f"error: no section {unknown[0]!r}; expected some of {', '.join(SECTIONS)}")
        raise typer.Exit(2)
    if rehearse and results == RESULTS:
        results = RESULTS.with_name("gpu-rehearsal")
    results = results.resolve()  # the sections run in another folder
    results.mkdir(parents=True, exist_ok=True)
    end, outcomes = time.monotonic() + 60 * minutes, dict[str, str]()
    for name in SECTIONS:
        if sections and name not in sections:
            continue
        limit_s, start = min(60 * SECTIONS[name].minutes, end - time.monotonic()), time.monotonic()
        try:
            ended = _run(name, results, limit_s, outcomes, rehearse)
        finally:
            write_report(results, SECTIONS, None if rehearse else HARDWARE)
        outcomes[name] = ended.outcome
        say(f"{name:<10} {ended.outcome:<10} {time.monotonic() - start:6.1f} s  {ended.reason}".rstrip())
    say(f"written: {results / 'gpu_check.md'}")
    if any(outcome not in (PASSED, SKIPPED) for outcome in outcomes.values()):
        raise typer.Exit(1)


def _run(name: str, results: Path, limit_s: float, before: Mapping[str, str], rehearse: bool) -> Ended:
    """Run one section; its file holds the outcome before and after."""
    kind, output = SECTIONS[name], results / f"{name}.jsonl"
    state = {
        **{"started": datetime.now(UTC).isoformat(timespec="seconds"), "outcome": "stopped"},
        **{"reason": "the check was stopped while this ran", "seconds": 0.0},
        "command": f"`python tools/gpu_check.py {name}{' --rehearse' if rehearse else ''}`",
    }
    failed = [need for need in kind.needs if before.get(need, PASSED) != PASSED]
    if failed or limit_s < 1:
        ended = Ended(SKIPPED, f"{failed[0]} did not pass" if failed else "no time was left")
        if not output.exists():  # what an earlier run came to stays
            output.write_text(json.dumps([STATE, {**state, **vars(ended)}]) + "\n", encoding="utf-8")
        return ended
    kept = [found for found in read(output) if isinstance(found, list) and found[0] in kind.keeps]
    output.write_text("".join(json.dumps(each) + "\n" for each in [[STATE, state], *kept]), encoding="utf-8")
    start = time.monotonic()
    arguments = {"folder": str(results), "rehearse": rehearse, "seconds": max(1.0, limit_s - RESERVED_S)}
    ended = run(f"{SECTION_MODULES}.{name}:run", arguments, output, limit_s)
    with output.open("a", encoding="utf-8") as lines:
        print("\n" + json.dumps([STATE, {**vars(ended), "seconds": round(time.monotonic() - start)}]), file=lines)
    return ended


if __name__ == "__main__":
    command_line(app, "gpu_check.py")
