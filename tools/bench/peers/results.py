"""Results on disk: a line of JSON for each run of an engine, written as it ends, so that a later call goes on."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from tools.bench.peers.contenders import CONTENDERS, FLOOR, REFERENCE
from tools.bench.peers.environments import PeerError
from tools.bench.peers.jobs import SHORT

__all__ = ["Cell", "Figures", "Group", "Record", "Results"]


class Group(NamedTuple):
    """Cells that are compared with each other."""

    shape: str
    source: int
    new_tokens: int
    threads: int
    beams: int
    batch: int


class Cell(NamedTuple):
    """An engine in a group."""

    group: Group
    engine: str


@dataclass(frozen=True)
class Record:
    """One round of a cell.

    Attributes
    ----------
    seconds, processor_seconds : list of float
        Of the runs of `Job.lengths`: the features of a recording first, the whole job last.
    tokens : list of list of int
        Sequences of the whole job.
    peak_mb : float
        Most memory that the engine's process had resident until then, loading included.
    when, load
        When the round ended, and the machine's load average of a minute at its start.
    """

    group: Group
    engine: str
    seconds: list[float]
    processor_seconds: list[float]
    tokens: list[list[int]]
    peak_mb: float
    versions: dict[str, str]
    when: str
    load: float


@dataclass(frozen=True)
class Figures:
    """A row of a table: medians over the rounds of a cell."""

    engine: str
    rounds: int
    job_s: float
    least_s: float
    most_s: float
    samples: int
    features_ms: float | None
    encoder_s: float | None
    step_ms: float | None
    peak_mb: float
    equal: int | None
    compared: int

    @property
    def is_floor(self) -> bool:
        """True of products alone, which nobody can use."""
        return CONTENDERS[self.engine].engine == FLOOR

    @property
    def samples_per_second(self) -> float:
        """Samples a second of the whole job."""
        return self.samples / self.job_s


class Results:
    """The records of a file, which is made with the first.

    Parameters
    ----------
    path
        The file.
    processor_time
        Take the processor's seconds for the figures, not the clock's.
    """

    def __init__(self, path: Path, processor_time: bool = False) -> None:
        self._path, self._processor_time = path, processor_time
        self._records: dict[Cell, list[Record]] = {}
        written = path.read_bytes() if path.exists() else b""
        self._whole = written.rfind(b"\n") + 1
        self._has_half_a_line = self._whole < len(written)
        for number, line in enumerate(written[: self._whole].splitlines(), 1):
            try:
                values = json.loads(line)
                self._keep(Record(**{**values, "group": Group(*values["group"])}))
            except (ValueError, TypeError, KeyError) as error:
                raise PeerError(f"{path}, line {number} is not a record ({error}); delete the line") from error

    def _keep(self, record: Record) -> None:
        self._records.setdefault(Cell(record.group, record.engine), []).append(record)

    def add(self, record: Record) -> None:
        """Append a record to the file; half a line, which a killed run may leave at its end, is overwritten."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._has_half_a_line:
            os.truncate(self._path, self._whole)
            self._has_half_a_line = False
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(record) | {"group": list(record.group)}) + "\n")
        self._keep(record)

    def records(self) -> Iterator[Record]:
        """All records, in the order of their cells."""
        for records in self._records.values():
            yield from records

    def rounds(self, cell: Cell) -> int:
        """Rounds of a cell that are done."""
        return len(self._records.get(cell, ()))

    def groups(self) -> list[Group]:
        """The groups that have records, from the smallest."""
        return sorted({cell.group for cell in self._records})

    def equal(self, group: Group, tokens: list[list[int]]) -> tuple[int, int]:
        """Count sequences that are the reference's, and those that it has, at this or any other batch size.

        Of a sample it may have several, since a tie of scores may fall otherwise in a batch of another size.
        """
        expected: list[list[list[int]]] = []
        for cell, records in self._records.items():
            if cell.engine == REFERENCE and cell.group._replace(batch=0) == group._replace(batch=0):
                given = records[0].tokens
                expected += [[] for _ in range(len(given) - len(expected))]
                for sequences, sequence in zip(expected, given, strict=False):
                    sequences.append(sequence)
        pairs = list(zip(tokens, expected, strict=False))
        return sum(mine in theirs for mine, theirs in pairs), len(pairs)

    def figures(self, group: Group) -> list[Figures]:
        """The figures of a group, in the order of `CONTENDERS`."""
        return [
            self._figures(group, name, self._records[Cell(group, name)])
            for name in CONTENDERS
            if Cell(group, name) in self._records
        ]

    def _figures(self, group: Group, name: str, records: list[Record]) -> Figures:
        seconds = [record.processor_seconds if self._processor_time else record.seconds for record in records]
        whole = [each[-1] for each in seconds]
        job_s = statistics.median(whole)
        features_ms = encoder_s = step_ms = None
        if group.new_tokens:
            *features_s, short_s = map(statistics.median, zip(*(each[:-1] for each in seconds), strict=True))
            step_s = (job_s - short_s) / (group.new_tokens - SHORT)
            encoder_s, step_ms = short_s - sum(features_s) - SHORT * step_s, 1e3 * step_s
            features_ms = 1e3 * features_s[0] if features_s else None
        tokens = records[0].tokens
        same, compared = self.equal(group, tokens)
        return Figures(
            engine=name,
            rounds=len(records),
            job_s=job_s,
            least_s=min(whole),
            most_s=max(whole),
            samples=len(tokens) or group.batch,
            features_ms=features_ms,
            encoder_s=encoder_s,
            step_ms=step_ms,
            peak_mb=max(record.peak_mb for record in records),
            equal=same if compared and name != REFERENCE else None,
            compared=compared,
        )
