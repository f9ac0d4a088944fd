"""Measure engines in turn, cell by cell, each in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime

from tools.bench.peers.contenders import EXACT
from tools.bench.peers.environments import PeerError
from tools.bench.peers.jobs import SHORT, Job
from tools.bench.peers.peer import Peer
from tools.bench.peers.results import Cell, Group, Record, Results

__all__ = ["measure"]

WARM_UP = 8
"""Samples that warm an engine up, at most."""


def measure(
    groups: Sequence[tuple[Group, Job]],
    engines: Sequence[str],
    rounds: int,
    results: Results,
    start: Callable[[str], Peer],
    say: Callable[[str], None],
) -> None:
    """Measure what is missing of all cells.

    Engines take turns, so that a slow moment of the machine meets all of them. Each is started when it is first needed,
    and warmed up before its first run of a group.

    Parameters
    ----------
    groups
        Groups, and their jobs.
    engines
        Names of contenders, in the order of their turns.
    rounds
        Records that a cell needs.
    start
        Starts an engine.
    say
        Receives a line about each record.

    Raises
    ------
    PeerError
        An engine fails, or Tightbeam's tokens in float32 are not those of transformers; that run is not recorded.
    """
    with ExitStack() as stack:
        started: dict[str, Peer] = {}
        for group, job in groups:
            warm: set[str] = set()
            for number in range(1, rounds + 1):
                for name in engines:
                    if results.rounds(Cell(group, name)) >= number:
                        continue
                    if name not in started:
                        started[name] = start(name)
                        stack.callback(started[name].close)
                    if name not in warm:
                        started[name].run(job.message(group.batch, SHORT, min(WARM_UP, group.batch)))
                        warm.add(name)
                    record = _record(group, job, name, started[name])
                    same, compared = results.equal(group, record.tokens)
                    if name == EXACT and same != compared:
                        raise PeerError(f"{name}: {compared - same} of {compared} sequences are wrong in {group}")
                    results.add(record)
                    beams = f"{group.beams} beams" if group.beams > 1 else "greedy"
                    where = f"{group.shape}, {beams}, batch {group.batch}, round {number}"
                    say(f"{where}: {name} {record.seconds[-1]:.2f} s, {same} of {compared} sequences equal")


def _record(group: Group, job: Job, name: str, engine: Peer) -> Record:
    load = os.getloadavg()[0]
    found = [engine.run(job.message(group.batch, length)) for length in job.lengths]
    return Record(
        group=group,
        engine=name,
        seconds=[run["seconds"] for run in found],
        processor_seconds=[run["processor_seconds"] for run in found],
        tokens=found[-1]["tokens"],
        peak_mb=found[-1]["memory_mb"]["peak"],
        versions=engine.loaded["versions"],
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        load=load,
    )
