"""The folder of results: one file a partition, written whole or not at all, and a record of the run.

results/_run.json                  bundle, settings and input files
results/a.jsonl-00000.jsonl        results of the first partition of the input file a.jsonl
results/b.parquet-00000.parquet
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tightbeam.deploy.bundle.atomic_file import remove_partial, write_file
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.ray.input_data import InputFile
from tightbeam.deploy.ray.library import optional_library
from tightbeam.deploy.ray.partition import PARQUET, Partition
from tightbeam.deploy.run_model.record import check_same_run

__all__ = ["failed_rows", "open_results", "remove_unfinished", "result_path", "write_result"]

RECORD = "_run.json"


def open_results(folder: Path, run: Mapping[str, Any], files: Sequence[InputFile]) -> None:
    """Make a folder for results, or check that its results are of the same bundle, settings and files.

    Input files may have been added since.

    Parameters
    ----------
    folder : Path
    run : mapping
        The values that results depend on, by name, in JSON's types.
    files : sequence of InputFile

    Raises
    ------
    InputError
        The folder cannot be written, or holds other files or results.
    """
    run = json.loads(json.dumps(run))
    now = {file.name: [file.nbytes, file.rows, file.digest] for file in files}
    try:
        before = _read_record(folder)
        if before is None:
            before = {"files": {}, "run": run}
            if folder.is_dir() and any(folder.iterdir()):
                raise InputError(f"{folder} is not empty, and holds no results of --ray; pass another --output")
        check_same_run(str(folder), before["run"], run)
        changed = next((name for name, file in now.items() if before["files"].get(name, file) != file), None)
        if changed is not None:
            raise InputError(f"{changed} has changed since {folder} was begun; pass another --output")
        record = {"files": {**before["files"], **now}, "run": before["run"]}
        folder.mkdir(parents=True, exist_ok=True)
        write_result(folder / RECORD, json.dumps(record, indent=1).encode())
    except OSError as error:
        raise InputError(f"cannot write {folder}: {(error.strerror or '').lower()}; pass another --output") from None


def result_path(folder: Path, partition: Partition, rows_each: int) -> Path:
    """Return the file for the results of a partition."""
    suffix = ".parquet" if partition.kind == PARQUET else ".jsonl"
    return folder / f"{partition.file}-{(partition.first - 1) // rows_each:05}{suffix}"


def failed_rows(path: Path) -> int:
    """Count the rows with an error in the results of a partition. Raises InputError if they cannot be read."""
    try:
        if path.suffix == ".parquet":
            errors = optional_library("pyarrow.parquet").read_table(path, columns=["error"]).column(0)
            return len(errors) - int(errors.null_count)
        with path.open("rb") as file:
            return sum("error" in json.loads(line) for line in file)
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        raise InputError(f"{path} holds no results; remove it, so that its rows are run again") from None


def write_result(path: Path, data: bytes, *, run: str = "") -> None:
    """Write a file that appears when it is complete, for the run ``run``. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, [data], writer=run)


def remove_unfinished(folder: Path, run: str) -> None:
    """Remove the unfinished files of a run whose actors have all ended, and those that other runs left long ago."""
    remove_partial(folder.rglob(".*"), writer=run)


def _read_record(folder: Path) -> dict[str, Any] | None:
    path = folder / RECORD
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --ray writes a folder, pass --output the name of one")
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        record = None
    if not (isinstance(record, dict) and all(isinstance(record.get(part), dict) for part in ("run", "files"))):
        raise InputError(f"{path} is damaged, it should name the bundle and settings; pass another --output")
    return record
