"""Memory and load time of a bundle, in processes of their own that load it and generate once.

    python -m tools.bench.memory build/demo-el
    python -m tools.bench.memory build/demo-el --processes 3

The figures come from ``/proc``, so they need Linux. All files are in the page cache before the first process starts, so
that a load time is that of a second start. Of several processes, each generates before the next one starts, and all are
alive when their shares are read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tightbeam.deploy import Bundle, BundleError, InputError
from tightbeam.deploy.console import command_line, say
from tightbeam.deploy.model.bundle_facts import workload_of

__all__ = ["Usage", "usage_of"]

MB = 1_000_000
KB = 1024
"""Bytes of what ``/proc`` calls kB."""
PROCESS = Path(__file__).with_name("memory_process.py")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Usage:
    """Memory of a process at one moment, in MB (10^6 bytes).

    Attributes
    ----------
    peak : float
        Most resident memory since the process started (VmHWM).
    resident : float
        Resident memory now, the sum of ``anonymous`` and ``file_backed``.
    anonymous : float
        Resident memory that no file backs: what the process allocated, and its own copies of changed pages.
    file_backed : float
        Resident memory that files back: libraries, and mapped weights. Processes share it.
    proportional : float
        Resident memory, a page of n processes counted as 1/n of one (Pss).
    """

    peak: float
    resident: float
    anonymous: float
    file_backed: float
    proportional: float


def usage_of(pid: int) -> Usage:
    """Read the memory of a running process from ``/proc``. Raises OSError for a process that has ended."""
    text = "".join(Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8") for name in ("status", "smaps_rollup"))
    lines = [line.split() for line in text.splitlines()]
    found = {words[0].rstrip(":"): int(words[1]) * KB / MB for words in lines if words[-1] == "kB"}
    resident, anonymous = found["Rss"], found["Anonymous"]
    return Usage(found["VmHWM"], resident, anonymous, resident - anonymous, found["Pss"])


@app.command()
def report(
    bundle: Annotated[Path, typer.Argument(help="Bundle folder.")],
    processes: Annotated[int, typer.Option(min=1, help="Processes that are alive at once.")] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of a process; one for each core by default.")
    ] = None,
    beams: Annotated[int, typer.Option(min=1, help="Beams.")] = 1,
    source_length: Annotated[int, typer.Option(min=1, help="Tokens of the source or prompt.")] = 64,
    new_tokens: Annotated[int, typer.Option(min=1, help="New tokens.")] = 20,
    recording: Annotated[Path | None, typer.Option(help="Recording that a speech model transcribes.")] = None,
) -> None:
    """Print memory and load time of a bundle."""
    if sys.platform != "linux":
        raise BundleError("memory is read from /proc, which needs Linux; run this there")
    read = Bundle.load(bundle)
    takes_ids = read.manifest.encoder.inputs[0].name == "input_ids"
    size = workload_of(
        read.manifest, num_beams=beams, new_tokens=new_tokens, source_length=source_length if takes_ids else None
    )
    files = [path for path in bundle.rglob("*") if path.is_file()]
    on_disk = sum(len(path.read_bytes()) for path in files) / MB
    numbers = (threads or 0, beams, new_tokens, size.source_length)
    command = [sys.executable, "-P", str(PROCESS), str(bundle), str(recording or ""), *map(str, numbers)]
    with ExitStack() as stack:
        first, *others = [_generated(command, stack) for _ in range(processes)]
        pid, times, usage = first
        shares = [usage_of(each).proportional for each in (pid, *(other for other, *_ in others))]
    print(f"on disk {on_disk:.1f} MB, caches {sum(times['cache_bytes']) / MB:.1f} MB")
    print(f"load {times['load_s']:.2f} s, first result {times['first_result_s']:.2f} s")
    print(f"peak {usage.peak:.0f} MB, anonymous {usage.anonymous:.0f} MB, file-backed {usage.file_backed:.0f} MB")
    print(f"proportional, {processes} at once: {', '.join(f'{share:.0f}' for share in shares)} MB")


def _generated(command: list[str], stack: ExitStack) -> tuple[int, dict[str, Any], Usage]:
    """Start a process, which ends with the stack; once it has generated, its id, its figures and its memory."""
    pipe = subprocess.PIPE
    process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
    stack.callback(process.kill)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        reason = process.communicate()[1].splitlines() or ["it said nothing"]
        raise BundleError(f"the process that measures memory failed: {reason[-1]}")
    return process.pid, json.loads(line), usage_of(process.pid)


def main() -> None:
    """Run the command; a known error is one line."""
    try:
        command_line(app, "python -m tools.bench.memory")
    except (BundleError, InputError) as error:
        say(f"error: {error}")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
