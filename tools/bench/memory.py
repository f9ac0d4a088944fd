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
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tightbeam.deploy import Bundle, BundleError, InputError
from tightbeam.deploy.console import command_line, say
from tightbeam.deploy.model.bundle_facts import Workload, workload_of

__all__ = ["Memory", "Usage", "measure", "usage_of"]

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
    private_dirty : float
        Changed pages that no other process shares.
    proportional : float
        Resident memory, a page of n processes counted as 1/n of one (Pss).
    """

    peak: float
    resident: float
    anonymous: float
    file_backed: float
    private_dirty: float
    proportional: float


@dataclass(frozen=True)
class Memory:
    """Memory and times of one process that loaded a bundle and generated once.

    Attributes
    ----------
    imported, loaded, steady : Usage
        After the imports, after the load, and after the first result.
    load_s, load_with_imports_s : float
        Seconds of `Runner.load`; and from the start of the process to the loaded runner.
    first_result_s : float
        Seconds of the first result after the load.
    cache_bytes : int
        Bytes of both caches of that result.
    """

    imported: Usage
    loaded: Usage
    steady: Usage
    load_s: float
    load_with_imports_s: float
    first_result_s: float
    cache_bytes: int


def usage_of(pid: int) -> Usage:
    """Read the memory of a running process from ``/proc``. Raises OSError for a process that has ended."""
    status = _fields(Path(f"/proc/{pid}/status"))
    rollup = _fields(Path(f"/proc/{pid}/smaps_rollup"))
    return Usage(
        peak=status["VmHWM"],
        resident=rollup["Rss"],
        anonymous=rollup["Anonymous"],
        file_backed=rollup["Rss"] - rollup["Anonymous"],
        private_dirty=rollup["Private_Dirty"],
        proportional=rollup["Pss"],
    )


def measure(
    bundle: Bundle, workload: Workload, *, processes: int = 1, threads: int | None = None, recording: Path | None = None
) -> tuple[Memory, list[float]]:
    """Measure the memory of processes that run one bundle at once.

    Parameters
    ----------
    bundle : Bundle
    workload : Workload
        The sizes of the one result; ``batch_size`` is not read, one sample runs.
    processes : int
        Processes that are alive at once.
    threads : int, optional
        Threads of each process; by default those of `Runner.load`.
    recording : Path, optional
        The recording that a speech model transcribes to its end, in place of 5 s of noise.

    Returns
    -------
    memory : Memory
        That of the first process, while it was alone.
    shares : list of float
        Proportional memory of each process in MB, once all have generated.

    Raises
    ------
    BundleError
        A process failed; the message has its last line.
    """
    if sys.platform != "linux":
        raise BundleError("memory is read from /proc, which needs Linux; run this there")
    for path in bundle.path.rglob("*"):
        if path.is_file():
            path.read_bytes()
    sizes = (threads or 0, workload.num_beams, workload.new_tokens, workload.source_length)
    command = [sys.executable, "-P", str(PROCESS), str(bundle.path), str(recording or ""), *map(str, sizes)]
    with ExitStack() as stack:
        started = [_Process(command, stack) for _ in range(processes)]
        return started[0].memory, [usage_of(each.pid).proportional for each in started]


class _Process:
    """A process that has generated and waits; it ends with the stack."""

    def __init__(self, command: list[str], stack: ExitStack) -> None:
        begun = time.monotonic()
        pipe = subprocess.PIPE
        self._process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        stack.callback(self._process.kill)
        self.pid = self._process.pid
        loading, imported = self._step()
        done, loaded = self._step()
        result, steady = self._step()
        self.memory = Memory(
            imported=imported,
            loaded=loaded,
            steady=steady,
            load_s=done["seconds"],
            load_with_imports_s=loading["now"] - begun + done["seconds"],
            first_result_s=result["seconds"],
            cache_bytes=sum(result["cache_bytes"]),
        )

    def _step(self) -> tuple[dict[str, Any], Usage]:
        """Let the process go on to its next line, and read its memory there."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            reason = self._process.communicate()[1].splitlines() or ["it said nothing"]
            raise BundleError(f"the process that measures memory failed: {reason[-1]}")
        return json.loads(line), usage_of(self.pid)


def _fields(path: Path) -> dict[str, float]:
    """The sizes of a file of ``/proc``, in MB."""
    lines = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
    return {words[0].rstrip(":"): int(words[1]) * KB / MB for words in lines if words[-1] == "kB"}


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
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Print memory and load time of a bundle."""
    read = Bundle.load(bundle)
    takes_ids = read.manifest.encoder.inputs[0].name == "input_ids"
    sizes = workload_of(
        read.manifest, num_beams=beams, new_tokens=new_tokens, source_length=source_length if takes_ids else None
    )
    memory, shares = measure(read, sizes, processes=processes, threads=threads, recording=recording)
    on_disk = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()) / MB
    if as_json:
        print(json.dumps({"on_disk_mb": on_disk, "proportional_mb": shares, **asdict(memory)}))
        return
    steady, cache = memory.steady, memory.cache_bytes / MB
    own = steady.anonymous - memory.imported.anonymous
    print(f"on disk {on_disk:.1f} MB, caches {cache:.1f} MB")
    print(f"load {memory.load_s:.2f} s, with start and imports {memory.load_with_imports_s:.2f} s")
    print(f"first result {memory.first_result_s:.2f} s")
    for name, usage in (("imported", memory.imported), ("loaded", memory.loaded), ("steady", steady)):
        print(
            f"{name + ':':9} peak {usage.peak:.0f} MB, resident {usage.resident:.0f}, anonymous {usage.anonymous:.0f}, "
            f"file-backed {usage.file_backed:.0f}, private dirty {usage.private_dirty:.0f}"
        )
    print(f"anonymous since the imports: {own:.0f} MB, {own / (on_disk + cache):.2f} x disk and caches")
    print(f"proportional, {processes} at once: {', '.join(f'{share:.0f}' for share in shares)} MB")


def main() -> None:
    """Run the command; a known error is one line."""
    try:
        command_line(app, "python -m tools.bench.memory")
    except (BundleError, InputError) as error:
        say(f"error: {error}")
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
