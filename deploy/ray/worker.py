"""The actor of `run-model --ray`: it reads a partition, runs its rows, and writes or returns their results."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tightbeam
from tightbeam.deploy.console import printable
from tightbeam.deploy.errors import BundleError, GenerationError, InputError
from tightbeam.deploy.inputs.newlines import escaped, spaced
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.ray.generate import load_model
from tightbeam.deploy.ray.library import optional_library
from tightbeam.deploy.ray.lines import read_lines
from tightbeam.deploy.ray.parquet import read_table
from tightbeam.deploy.ray.partition import PARQUET, SOUND, TEXT, FieldNames, Partition
from tightbeam.deploy.ray.recordings import recordings_of_lines, run_sound_rows
from tightbeam.deploy.ray.results import failed_rows, result_path, write_result
from tightbeam.deploy.ray.rows import RowSettings, lines_of_values, run_rows
from tightbeam.deploy.ray.table import with_results
from tightbeam.deploy.run_model.record import bundle_digest

__all__ = ["Job", "PartitionReport", "PartitionWorker"]

MOST_STARTS = 4
"""The most starts of a partition. A row that ends its process (memory) would otherwise end all actors, one by one."""
MOST_ERRORS = 20
"""The most errors of rows in a report."""


@dataclass(frozen=True)
class Job:
    """Work of all actors of a run.

    Attributes
    ----------
    bundle : str
        Absolute path of the bundle.
    digest : str
        SHA-256 of its bundle.json, which has the checksums of all files.
    version : str
        Version of Tightbeam.
    rows : RowSettings
    fields : FieldNames
    rows_each : int
        Rows of a partition.
    output : str or None
        Absolute path of the folder of results; None to return the results.
    json_lines : bool
        Return results as JSON, rather than as text.
    engine, device, threads
        Arguments of `Runner.load`.
    run : str
        The run, in the names of its unfinished files.
    """

    bundle: str
    digest: str
    version: str
    rows: RowSettings
    fields: FieldNames
    rows_each: int
    output: str | None
    json_lines: bool
    engine: str
    device: str
    threads: int | None
    run: str


@dataclass
class PartitionReport:
    """The report of a partition that an actor has run, or could not run.

    Attributes
    ----------
    index : int
        The partition's number.
    rows, failed, tokens : int
        Number of rows that ran, of rows with an error among them, and of tokens generated.
    errors : list of (int, str)
        The first rows with an error: their numbers and errors.
    by_default_length : bool
        True if an output ended at the length limit that counts if nobody sets one.
    lines : list of str
        The results, if they are returned.
    failure : str or None
        The reason why none of the rows was run.
    fatal : bool
        True if all other partitions would fail too.
    """

    index: int
    rows: int = 0
    failed: int = 0
    tokens: int = 0
    errors: list[tuple[int, str]] = field(default_factory=list)
    by_default_length: bool = False
    lines: list[str] = field(default_factory=list)
    failure: str | None = None
    fatal: bool = False


class PartitionWorker:
    """Callable of Ray Data: takes a row with a partition as JSON, and returns a row with its report as JSON.

    Expected errors are in the report, because an exception would end the whole run with a traceback.

    Parameters
    ----------
    job : Job
    starts : actor handle of StartCounter
    """

    def __init__(self, job: Job, starts: Any) -> None:
        self._job, self._starts = job, starts
        self._failure: str | None = None
        try:
            self._check()
            how = {"engine": job.engine, "device": job.device, "threads": job.threads}
            self._model = load_model(job.bundle, job.rows, **how)  # type: ignore[arg-type]
        except (BundleError, GenerationError, InputError) as error:
            self._failure = f"machine {platform.node()}: {error}"

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[str]]:
        """Run one partition."""
        ray = optional_library("ray")
        partition = Partition.from_json(str(batch["partition"][0]))
        report = PartitionReport(partition.index)
        started = ray.get(self._starts.start.remote(partition.index))
        if self._failure is not None:
            report.failure, report.fatal = self._failure, True
        elif started > MOST_STARTS:
            report.failure = f"its process ended {MOST_STARTS} times before its rows were finished; check the memory"
        else:
            self._run(partition, report)
        return {"report": [json.dumps(asdict(report))]}

    def _check(self) -> None:
        """Raise BundleError if this machine would give other results than the machine that started the run."""
        if tightbeam.__version__ != self._job.version:
            raise BundleError(
                f"Tightbeam {tightbeam.__version__} is installed, and {self._job.version} started the run; "
                "install one version on all machines"
            )
        if bundle_digest(Path(self._job.bundle)) != self._job.digest:
            raise BundleError(f"{self._job.bundle} differs from the bundle that the run was started with; copy it")

    def _run(self, partition: Partition, report: PartitionReport) -> None:
        job = self._job
        target = None if job.output is None else result_path(Path(job.output), partition, job.rows_each)
        if target is not None and target.exists():  # its actor was lost after it had written them
            report.rows, report.failed = partition.rows, failed_rows(target)
            return
        try:
            lines, keys = self._read(partition)
            results = self._results(partition, lines)
            for result in results:
                result.file = partition.file
            if target is None:
                report.lines = self._lines(partition, results, keys)
            elif partition.kind == PARQUET:
                write_result(target, self._parquet(partition, results), run=job.run)
            else:
                text = "".join(f"{line}\n" for line in json_lines(results, keys, job.fields))
                write_result(target, text.encode(), run=job.run)
        except (InputError, OSError) as error:
            report.failure = f"machine {platform.node()}: {error}"
        except BundleError as error:
            report.failure, report.fatal = f"machine {platform.node()}: {error}", True
        else:
            _count(report, results)

    def _results(self, partition: Partition, lines: list[bytes]) -> list[InputResult]:
        job, model = self._job, self._model
        name = None if partition.kind in (TEXT, SOUND) else job.fields.text
        if model.is_speech:
            beams = model.settings.options(job.rows.generation).num_beams
            recordings = recordings_of_lines(lines, name)
            return run_sound_rows(model, recordings, job.rows, beams, first=partition.first)
        return run_rows(model, lines, job.rows, name=name, first=partition.first)

    def _read(self, partition: Partition) -> tuple[list[bytes], list[Any]]:
        fields = self._job.fields
        if partition.kind == SOUND:
            return [os.fsencode(partition.path)], [None]
        if partition.kind != PARQUET:
            return read_lines(partition, fields)
        table = read_table(partition, [fields.text, *([fields.key] if fields.key else [])])
        keys = table.column(fields.key).to_pylist() if fields.key else [None] * table.num_rows
        return lines_of_values({fields.text: table.column(fields.text).to_pylist()}), keys

    def _lines(self, partition: Partition, results: list[InputResult], keys: list[Any]) -> list[str]:
        if self._job.json_lines:
            return json_lines(results, keys, self._job.fields)
        newlines = escaped if self._model.decoder_only else spaced
        named = f"{printable(partition.file)}\t" if partition.kind == SOUND else ""
        return [f"{named}{result.as_text(newlines)}" for result in results]

    def _parquet(self, partition: Partition, results: list[InputResult]) -> bytes:
        """Return a Parquet file with the rows' files and numbers, keys and results."""
        arrow, parquet = optional_library("pyarrow"), optional_library("pyarrow.parquet")
        columns = {
            "file": arrow.array([result.file for result in results], arrow.string()),
            "line": arrow.array([result.number for result in results], arrow.int64()),
        }
        if self._job.fields.key is not None:
            columns["key"] = read_table(partition, [self._job.fields.key]).column(0)
        stream = arrow.BufferOutputStream()
        scoring = self._model.settings.options(self._job.rows.generation).scoring
        parquet.write_table(
            with_results(arrow.table(columns), results, scoring=scoring, sound=self._model.is_speech), stream
        )
        return bytes(stream.getvalue())


def json_lines(results: list[InputResult], keys: list[Any], fields: FieldNames) -> list[str]:
    """Return the results as JSON objects, as `run-model --json` writes them, with the rows' keys."""
    lines = [result.as_json() for result in results]
    if fields.key is None:
        return lines
    return [
        json.dumps({"key": key, **json.loads(line)}, ensure_ascii=False, default=str)
        for key, line in zip(keys, lines, strict=True)
    ]


def _count(report: PartitionReport, results: list[InputResult]) -> None:
    report.rows = len(results)
    report.tokens = sum(result.new_tokens for result in results)
    report.by_default_length = any(result.by_default_length for result in results)
    errors = [(result.number, result.error) for result in results if result.error is not None]
    report.failed, report.errors = len(errors), errors[:MOST_ERRORS]
