"""The folder of results: one file a partition, written whole or not at all, and a record of the run.

results/_run.json                  bundle, settings and input files
results/a.jsonl-00000.jsonl        results of the first partition of the input file a.jsonl
results/b.parquet-00000.parquet
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from tightbeam.deploy.bundle.atomic_file import remove_partial, write_file
from tightbeam.deploy.bundle.manifest import MANIFEST
from tightbeam.deploy.errors import BundleError, InputError
from tightbeam.deploy.ray.input_data import InputFile
from tightbeam.deploy.ray.library import optional_library
from tightbeam.deploy.ray.partition import PARQUET, Partition
from tightbeam.deploy.tries.trie import Trie

__all__ = ["bundle_digest", "failed_rows", "open_results", "remove_unfinished", "result_path", "write_result"]

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
        _compare(folder, before["run"], run)
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


def _compare(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in [*now, *(name for name in before if name not in now)]:
        old, new = before.get(name), now.get(name)
        if old != new:
            if name == "bundle":
                raise InputError(f"{folder} holds results of another bundle; pass that one, or another --output")
            raise InputError(
                f"{folder} holds results of other settings ({name} is {json.dumps(old)} there, {json.dumps(new)} "
                "here); pass the same ones, or another --output"
            )


def in_json(value: Any) -> Any:
    """Return a setting in JSON's types; a trie becomes a digest of its arrays."""
    if isinstance(value, Trie):
        return hashlib.sha256(value.offsets.tobytes() + value.tokens.tobytes()).hexdigest()
    if is_dataclass(value):
        return {own.name: in_json(getattr(value, own.name)) for own in fields(value)}
    if isinstance(value, tuple):
        return [in_json(part) for part in value]
    return value.hex() if isinstance(value, bytes) else value


def bundle_digest(bundle: Path) -> str:
    """Return the SHA-256 of bundle.json, which has the checksums of all files of the bundle. Raises BundleError."""
    try:
        return hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest()
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise BundleError(
            f"{bundle / MANIFEST} cannot be read ({reason}); put the bundle there, or share its folder"
        ) from None
