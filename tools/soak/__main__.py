"""Serve tiny models under good and hostile requests, kills and a full disk; count what is lost and what is wrong.

    python -m tools.soak --minutes 30 --seed 1

First half: workers and servers are killed at random times, one worker is killed again and again, and the disk is full
now and then. Second half: the requests go on without kills, and memory is measured while no request is open.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import time
from itertools import combinations
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from tools.soak.clients import Clients, Tally
from tools.soak.models import DEMO, WHISPER, write_repository
from tools.soak.requests import each_hostile_request, good_requests
from tools.soak.server import Disk, SoakedServer

ROOT = Path(__file__).resolve().parents[2] / "build" / "soak"
CLIENTS = 12
MEASURED = (0.25, 0.4, 0.55, 0.7, 0.85, 1.0)
"""Parts of the second half after which memory is measured. The second half begins with every client's request of each
hostile kind at once. So before the first measurement processes have imported what requests need, their caches are full,
and pools that never shrink, such as the memory that Triton shares with its backends, have had their worst moment."""
Measured = tuple[dict[str, int], int]
"""Bytes of each process, and open files of all."""
SETTLES_S = 8
"""Time in which workers that have ended their work give its memory back."""
WORKS_ON_S = 60.0
"""Longest time in which workers may end what nobody waits for any more."""
STILL = 0.05
"""Processors that processes without work use together: they look for news, and beat."""
MOST_GROWTH = 0.02
LONG_MINUTES = 10.0
"""A run must be this long for its growth to count: caches fill in the first minutes."""
OWN_MOUNTS = "TIGHTBEAM_SOAK_OWN_MOUNTS"
"""Set in a process whose mounts nobody else sees."""


def main(
    minutes: Annotated[float, typer.Option(min=0.5, help="Minutes of requests.")] = 30.0,
    seed: Annotated[int, typer.Option(help="Seed of requests and kills.")] = 1,
    output: Annotated[Path, typer.Option(help="Folder for the models, the log and the report.")] = ROOT,
) -> None:
    """Soak a server, and print what became of the requests; exit status 1 if one is lost or wrong."""
    _own_mounts()
    repository, bundles = write_repository(output)
    good = good_requests(bundles)
    disk = Disk(output / "disk")
    log = disk.folder / "server.log"
    log.unlink(missing_ok=True)
    server = SoakedServer(repository, log)
    tally = Tally()
    try:
        found = asyncio.run(
            _soak(server, disk, Clients(server.address, good, seed, tally, lambda: server.changes), minutes * 60, seed)
        )
    finally:
        code = server.stop()
        shutil.copy(log, output / "server.log")
    faults = _report(tally, server, found, code, minutes, seed, disk)
    (output / "bad.txt").write_text("\n".join(tally.bad))
    if faults:
        print(f"error: {', '.join(faults)}; see {output}/bad.txt and server.log", file=sys.stderr)
        raise typer.Exit(1)


def _own_mounts() -> None:
    """Run in a mount namespace of its own, if root may make one, so that no mount is left behind."""
    if os.geteuid() == 0 and OWN_MOUNTS not in os.environ and shutil.which("unshare"):
        unshare = ["unshare", "--mount", "--"]
        if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode == 0:
            os.execvpe(
                "unshare",
                [*unshare, sys.executable, "-m", "tools.soak", *sys.argv[1:]],
                {**os.environ, OWN_MOUNTS: "1"},
            )


async def _soak(server: SoakedServer, disk: Disk, clients: Clients, seconds: float, seed: int) -> list[Measured]:
    rng = random.Random(seed)
    running = asyncio.create_task(clients.run(CLIENTS))
    clients.resume()
    await _kills(server, disk, clients, time.monotonic() + seconds / 2, rng)
    clients.begin_with(each_hostile_request(rng, CLIENTS))
    begin, found = time.monotonic(), []
    for part in MEASURED:
        await asyncio.sleep(max(0.0, begin + part * seconds / 2 - time.monotonic()))
        await clients.drain()
        await _until_still(server)
        found.append((server.memory(), server.open_files()))
        clients.resume()
    clients.stop()
    await running
    return found


async def _until_still(server: SoakedServer) -> None:
    """Wait until the processes have ended what nobody waits for, and then until they have given its memory back."""
    end, before = time.monotonic() + WORKS_ON_S, server.processor_seconds()
    while time.monotonic() < end:
        await asyncio.sleep(2)
        now = server.processor_seconds()
        if now - before < 2 * STILL:
            break
        before = now
    await asyncio.sleep(SETTLES_S)


async def _kills(server: SoakedServer, disk: Disk, clients: Clients, end: float, rng: random.Random) -> None:
    """Kill and fill until ``end``; afterwards the server is a new one, and all models are ready."""
    length = end - time.monotonic()
    events = [(rng.uniform(0.2, 1) * length, "server") for _ in range(max(1, round(length / 240)))]
    events += [(rng.uniform(0, 1) * length, "disk") for _ in range(max(1, round(length / 200)))]
    events += [(rng.uniform(0, 0.8) * length, "storm") for _ in range(max(1, round(length / 450)))]
    events += [(rng.uniform(0, 1) * length, "worker") for _ in range(round(length / 8))]
    begin = end - length
    for at, what in sorted(events):
        await asyncio.sleep(max(0.0, begin + at - time.monotonic()))
        if what == "server":
            await _new_server(server, clients)
        elif what == "disk":
            disk.fill()
            for _ in range(8):
                server.kill_worker(rng)
                await asyncio.sleep(1)
            disk.free()
            server.killed["disk filled"] += 1
        elif what == "storm":
            model, until = rng.choice((DEMO, WHISPER)), time.monotonic() + 15
            while time.monotonic() < until:
                server.kill_worker(rng, model)
                await asyncio.sleep(0.3)
            server.killed["storm"] += 1
        else:
            server.kill_worker(rng)
    await asyncio.sleep(max(0.0, end - time.monotonic()))
    await _new_server(server, clients)


async def _new_server(server: SoakedServer, clients: Clients) -> None:
    """Kill the server under load, and start it again."""
    clients.hold()
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    clients.resume()


def growth_of(totals: list[int]) -> float:
    """Return by how much of their median the measured bytes grew from the first to the last one.

    That is the median of the slopes between any two of them, by the number of steps: one measurement apart, which is
    more by what the last requests left, changes little, and a leak, which is in all of them, is found whole.
    """
    slopes = [(last - first) / (m - n) for (n, first), (m, last) in combinations(enumerate(totals), 2)]
    return float(np.median(slopes) * (len(totals) - 1) / np.median(totals))


def _report(
    tally: Tally,
    server: SoakedServer,
    found: list[Measured],
    code: int,
    minutes: float,
    seed: int,
    disk: Disk,
) -> list[str]:
    """Print the figures; return the faults."""
    counts = tally.counts
    print(
        f"soak of {minutes:g} minutes, seed {seed}" + ("" if disk.small else "; no disk was filled, which needs root")
    )
    for name in ("sent", "answered", "refused", "failed", "cancelled", "unread", "cut", "lost", "wrong", "defects"):
        print(f"  {name:10} {counts[name]:7,}")
    latencies = np.array(tally.latencies_s or [0.0])
    p50, p99 = np.percentile(latencies, (50, 99))
    print(f"  good requests: median {p50:.2f} s, 99 % {p99:.2f} s, longest {latencies.max():.2f} s")
    kills = ", ".join(f"{count} {what}" for what, count in server.killed.items())
    print(f"  kills: {kills}; restarts of workers: {server.restarts:.0f}; exit status {code}")
    print(f"  left behind: {', '.join(server.left_behind) or 'nothing'}")
    totals = [sum(memory.values()) for memory, _ in found]
    growth = growth_of(totals)
    print(f"  memory: {', '.join(f'{total / 1e6:,.1f}' for total in totals)} MB ({growth:+.1%})")
    print(f"  open files: {', '.join(str(files) for _, files in found)}")
    for name in sorted({name for memory, _ in found for name in memory}):
        print(f"    {name:28}", *(f"{memory.get(name, 0) / 1e6:8.1f}" for memory, _ in found))
    for reason, count in tally.reasons.most_common(60):
        print(f"    {count:6,} {reason}")
    faults = [f"{counts[name]} {name}" for name in ("lost", "wrong", "defects") if counts[name]]
    if server.left_behind:
        faults.append(f"{len(server.left_behind)} processes or files left behind")
    if minutes >= LONG_MINUTES and growth > MOST_GROWTH:
        faults.append(f"memory grew by {growth:.1%}")
    return faults


if __name__ == "__main__":
    typer.run(main)
