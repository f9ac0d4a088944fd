"""`run-model --ray`: from the command line to results in a folder, or on standard output in the order of the input."""

from __future__ import annotations

import itertools
import os
import secrets
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tightbeam
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.console import counted, say
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.resolve import resolve_settings
from tightbeam.deploy.generation.without_effect import remove_settings_without_effect
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.ray.cluster import connected, machines
from tightbeam.deploy.ray.input_data import cut, find_files
from tightbeam.deploy.ray.job import ClusterRun
from tightbeam.deploy.ray.partition import FieldNames, Partition
from tightbeam.deploy.ray.results import (
    failed_rows,
    open_results,
    remove_unfinished,
    result_path,
)
from tightbeam.deploy.ray.rows import RowSettings
from tightbeam.deploy.ray.sizing import ActorMemory, memory_of_actor, plan_actors
from tightbeam.deploy.ray.table import check_without_attention
from tightbeam.deploy.ray.worker import Job, PartitionReport
from tightbeam.deploy.run_model.options import RunOptions
from tightbeam.deploy.run_model.output_file import STDOUT, check_output
from tightbeam.deploy.run_model.progress import RunProgress, progress_bar
from tightbeam.deploy.run_model.record import bundle_digest, settings_in_json
from tightbeam.deploy.run_model.summary import RunSummary

__all__ = ["RayRun", "run_on_ray"]

MOST_SAID = 20
"""The most errors of rows that are printed; the results in the folder have all of them."""


@dataclass(frozen=True, kw_only=True)
class RayRun(RunOptions):
    """A run on Ray that the command line asks for.

    Attributes
    ----------
    output : str or None
        Folder of the results; None for standard output.
    rows : RowSettings
    fields : FieldNames
    rows_each : int
        Rows of a partition.
    """

    output: str | None
    rows: RowSettings
    fields: FieldNames
    rows_each: int


def run_on_ray(run: RayRun) -> int:
    """Run all rows that have no result yet.

    Returns
    -------
    int
        The exit code: 0, or 1 if a row or a partition could not be run, in this run or in an earlier one.

    Raises
    ------
    BundleError, GenerationError, InputError
        Nothing can be run, or Ray failed.
    """
    if run.output is None:
        check_output(STDOUT, False, run.sources, option="--output")
    bundle = Bundle.load(run.bundle, verify=False)  # each actor compares the files with their checksums
    manifest = bundle.manifest
    settings, notes = remove_settings_without_effect(dict(run.rows.generation), speech=manifest.has_windows)
    run = replace(run, rows=replace(run.rows, generation=settings))
    for note in () if run.quiet else notes:
        say(f"note: {note}")
    options = _options(bundle, run.rows)
    files = find_files(
        run.sources, run.fields, ids=run.rows.ids, rows_each=run.rows_each, sound=manifest.speech is not None
    )
    partitions = cut(files, run.rows_each)
    if run.output is not None:
        check_without_attention(options)
    if run.output is None and not run.json_lines and options.beside_texts:
        raise InputError(f"{options.beside_texts} is more than a line of text; pass --json too, or --output")
    if run.output is None:
        return _run_missing(run, partitions, bundle, options)
    folder = Path(run.output)
    open_results(folder, _depends_on(run, bundle, options), files)
    paths = {part.index: result_path(folder, part, run.rows_each) for part in partitions}
    there = {index: path for index, path in paths.items() if path.exists()}
    missing = [part for part in partitions if part.index not in there]
    failed = sum(map(failed_rows, there.values()))
    if there and not run.quiet:
        say(f"note: {folder} has the results of {len(there)} of {counted(len(partitions), 'partition')}")
    name = secrets.token_hex(4)
    try:
        code = _run_missing(run, missing, bundle, options, name) if missing else 0
    finally:
        remove_unfinished(folder, name)
    if failed:
        say(f'error: {counted(failed, "row")} of earlier runs could not be run; each has its "error" in the results')
    return 1 if failed else code


def _run_missing(
    run: RayRun, missing: Sequence[Partition], bundle: Bundle, options: GenerationOptions, name: str = ""
) -> int:
    together = run.rows.batch_size if run.rows.max_rows is None else max(1, run.rows.max_rows // options.num_beams)
    memory = memory_of_actor(bundle.manifest, options, together)
    return _Run(run, missing, options.num_return_sequences, name).go(memory)


class _Run:
    """A run in progress: prints each report, and adds up the totals."""

    def __init__(self, run: RayRun, partitions: Sequence[Partition], returned: int, name: str) -> None:
        self._run, self._partitions, self._returned, self._name = run, partitions, returned, name
        self._output = sys.stdout
        self._progress = progress_bar(run.quiet or (run.output is None and sys.stdout.isatty()))
        self._bar = RunProgress(self._progress, sum(part.rows for part in partitions))
        self._summary = RunSummary("row", 0)
        self._said = 0
        self._lost: list[str] = []

    def go(self, memory: ActorMemory) -> int:
        """Run the partitions, and return the exit code."""
        run = self._run
        begun = time.time()
        gpu = run.device != "cpu" or run.engine != "onnxruntime"
        if gpu and run.threads is not None:
            raise InputError("--threads is for the CPU; leave it out with --device and --engine")
        with connected() as ray:
            actors = plan_actors(machines(ray), memory, threads=run.threads, gpu=gpu)
            actors = replace(actors, count=min(actors.count, len(self._partitions)))
            threads = None if gpu else actors.cores
            cluster = ClusterRun(ray, _job(run, threads, self._name), actors, ordered=run.output is None)
            if not run.quiet:
                rows = counted(sum(part.rows for part in self._partitions), "row")
                say(f"note: {rows} in {counted(len(self._partitions), 'partition')}, {actors.text}")
            with self._progress:
                self._show_all(cluster.reports(self._partitions))
            started = cluster.started() or begun
        return self._end(time.time() - started, started - begun)

    def _show_all(self, reports: Iterable[PartitionReport]) -> None:
        """Print reports as they come; on standard output in the order of the partitions, each of which is there."""
        waiting = {part.index: part for part in self._partitions}
        held: dict[int, PartitionReport] = {}
        for report in reports:
            if report.fatal:
                raise InputError(report.failure or "an actor failed")
            held[report.index] = report
            due = list(itertools.takewhile(held.__contains__, waiting)) if self._run.output is None else [report.index]
            for index in due:
                self._show(waiting.pop(index), held.pop(index))
        for index, part in waiting.items():
            self._show(part, held.get(index) or PartitionReport(index, failure="no actor reported it"))

    def _show(self, part: Partition, report: PartitionReport) -> None:
        """Print the results of a partition, and its errors."""
        if report.failure is not None:
            self._lost.append(f"{part.place}: {report.failure}")
            if self._run.output is None:  # a line of the output for each line of the input
                report.lines = _without_results(part, report.failure, self._run.json_lines, self._returned)
        for line in report.lines:
            self._output.write(f"{line}\n")
        self._output.flush()
        for number, error in report.errors:
            if self._said < MOST_SAID:
                say(f"error: {part.file}, row {number}: {error}")
            self._said += 1
        self._summary.inputs += report.rows - report.failed
        self._summary.failed += report.failed
        self._summary.tokens += report.tokens
        self._summary.by_default_length |= report.by_default_length
        self._bar.advance(part.rows, 0, self._summary.rates())

    def _end(self, seconds: float, start_seconds: float) -> int:
        """Print the outcome of the run, and return the exit code."""
        summary = self._summary
        summary.started = time.perf_counter() - seconds
        if not self._run.quiet:
            for note in summary.notes():
                say(f"note: {note}")
            say(f"{summary.counts()}; actors started in {start_seconds:.0f} s")
        for lost in self._lost[:MOST_SAID]:
            say(f"error: {lost}")
        if self._lost:
            again = "" if self._run.output is None else "; the same command again runs them"
            say(f"error: {counted(len(self._lost), 'partition')} could not be run{again}")
        if summary.failed:
            where = "is named above" if summary.failed <= self._said <= MOST_SAID else 'has its "error" in the results'
            say(f"error: {summary.failed} of the rows could not be run; each {where}")
        return 1 if self._lost or summary.failed else 0


def _options(bundle: Bundle, rows: RowSettings) -> GenerationOptions:
    """Return the resolved settings. Raises GenerationError or InputError if no row can be run with them."""
    manifest = bundle.manifest
    if manifest.image is not None:
        raise InputError("--ray is for texts and sound, and this is a model of images; leave --ray out")
    if manifest.speech is not None and (rows.ids or rows.truncate):
        raise InputError("--ids and --truncate are for text, this is a speech model; leave them out")
    if manifest.tokenizer is None and not rows.ids and manifest.speech is None:
        raise InputError(f"bundle {bundle.path} has no tokenizer, since its checkpoint has none; pass --ids")
    return resolve_settings(
        manifest.generation,
        rows.generation,
        manifest.sizes,
        speech=manifest.has_windows,
        whole_recordings=manifest.takes_whole_recordings,
    ).for_prompt(1)


def _depends_on(run: RayRun, bundle: Bundle, options: GenerationOptions) -> Mapping[str, Any]:
    """Return everything that results depend on, in JSON's types."""
    return {
        "bundle": bundle_digest(bundle.path),
        "model": bundle.manifest.model,
        "engine": run.engine,
        "ids": run.rows.ids,
        "truncate": run.rows.truncate,
        "text-field": run.fields.text,
        "key-field": run.fields.key,
        "row-settings": run.fields.settings,
        "partition-rows": run.rows_each,
        **settings_in_json(options),
    }


def _job(run: RayRun, threads: int | None, name: str) -> Job:
    """Return the work, with paths that other machines can use."""
    bundle = Path(os.path.abspath(run.bundle))
    return Job(
        bundle=str(bundle),
        digest=bundle_digest(bundle),
        version=tightbeam.__version__,
        rows=run.rows,
        fields=run.fields,
        rows_each=run.rows_each,
        output=None if run.output is None else os.path.abspath(run.output),
        json_lines=run.json_lines,
        engine=run.engine,
        device=run.device,
        threads=threads,
        run=name,
    )


def _without_results(part: Partition, error: str, json_lines: bool, returned: int) -> list[str]:
    """Return lines of standard output for the rows of a partition that could not be run."""
    numbers = range(part.first, part.first + part.rows)
    results = [InputResult(number, returned, error=error, file=part.file) for number in numbers]
    return [result.as_json() if json_lines else result.as_text() for result in results]
