"""Input of `run-model --ray`: files and folders of text, JSON lines, Parquet and sound, cut into partitions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs.files.audio import is_audio
from tightbeam.deploy.inputs.json_line import read_json_line
from tightbeam.deploy.ray.lines import LineScan, scan_lines
from tightbeam.deploy.ray.parquet import scan_parquet
from tightbeam.deploy.ray.partition import JSON_LINES, PARQUET, SOUND, TEXT, FieldNames, Partition
from tightbeam.deploy.run_model.input_files import IDS, STDIN, InputFiles, InputKind, expand_patterns, visible_files
from tightbeam.deploy.run_model.input_files import TEXT as TEXT_LINES

__all__ = ["InputFile", "cut", "find_files"]

SUFFIXES = {
    ".txt": TEXT,
    ".text": TEXT,
    ".jsonl": JSON_LINES,
    ".ndjson": JSON_LINES,
    ".parquet": PARQUET,
    ".pq": PARQUET,
}
"""Kind of file by the end of its name."""


@dataclass(frozen=True)
class InputFile:
    """A file whose rows were counted.

    Attributes
    ----------
    name : str
        The file's path inside the folder that was named, or its own name; with forward slashes.
    path : Path
    kind : str
    nbytes, rows : int
    digest : str
        BLAKE2b of the content, or of a Parquet file's footer; for a recording its size and the time of its last change.
    scan : LineScan or None
        The beginnings of its partitions; None for Parquet and recordings.
    """

    name: str
    path: Path
    kind: str
    nbytes: int
    rows: int
    digest: str
    scan: LineScan | None = None


def find_files(
    sources: Sequence[str], fields: FieldNames, *, ids: bool, rows_each: int, sound: bool = False
) -> list[InputFile]:
    """Find the files, check their kinds, and count their rows.

    Parameters
    ----------
    sources : sequence of str
        Files and folders. All files of a folder are taken, at any depth and in the order of their names, except files
        whose name begins with a dot or an underscore.
    fields
    ids : bool
        Rows are lists of token ids.
    rows_each : int
        Rows of a partition.
    sound : bool
        Take recordings too, and of a folder them alone.

    Raises
    ------
    InputError
        A file or folder is missing, empty, of an unknown kind, unreadable, or named like another one.
    """
    files: list[InputFile] = []
    paths: dict[str, Path] = {}
    for name, path in (found for source in expand_patterns(sources) for found in _named(source, sound)):
        if paths.setdefault(name, path) != path:
            raise InputError(
                f"{paths[name]} and {path} would both be called {name}; rename one, or run them separately"
            )
        kind = SOUND if sound and is_audio(path.name) else SUFFIXES.get(path.suffix.lower())
        if kind is None:
            raise InputError(
                f"{path} is of an unknown kind; expected {', '.join(SUFFIXES)}; rename it, or move it away"
            )
        try:
            files.append(_scan(name, path, kind, fields, ids, rows_each))
        except OSError as error:
            raise InputError(f"cannot read {path}: {(error.strerror or '').lower()}; check it") from None
    if not any(file.rows for file in files):
        raise InputError(f"{', '.join(sources)} has no rows; expected {', '.join(SUFFIXES)} with at least one")
    return files


def cut(files: Sequence[InputFile], rows_each: int) -> list[Partition]:
    """Return the partitions of files that were scanned with the same ``rows_each``."""
    made: list[Partition] = []
    for file in files:
        bounds = list(pairwise(file.scan.bounds)) if file.scan else [(0, 0)] * -(-file.rows // rows_each)
        for number, (start, stop) in enumerate(bounds):
            first = number * rows_each + 1
            rows = min(rows_each, file.rows - first + 1)
            place = (file.name, str(file.path), file.kind, first, rows)
            made.append(Partition(len(made), *place, offset=start, nbytes=stop - start))
    return made


def _named(source: str, sound: bool) -> Iterator[tuple[str, Path]]:
    """Iterate over the names and absolute paths of the files of one source; with ``sound`` of a folder's recordings."""
    if source == STDIN:
        raise InputError("--ray does not read standard input, which other machines cannot reach; write it to a file")
    path = Path(os.path.abspath(source))
    try:
        if path.is_file():
            yield path.name, path
            return
        if not path.is_dir():
            raise InputError(f"there is no file or folder {source}; pass one with {', '.join(SUFFIXES)}")
    except OSError as error:
        raise InputError(f"cannot read {source}: {(error.strerror or '').lower()}; pass a file or a folder") from None
    shown = [file for file in visible_files(path) if not sound or is_audio(file.name)]
    if not shown:
        expected = "sound files" if sound else f"some with {', '.join(SUFFIXES)}"
        raise InputError(f"folder {source} has no {'sound ' if sound else ''}files; expected {expected}")
    for file in shown:
        yield file.relative_to(path).as_posix(), file


def _scan(name: str, path: Path, kind: str, fields: FieldNames, ids: bool, rows_each: int) -> InputFile:
    status = path.stat()
    nbytes = status.st_size
    if kind == SOUND:
        return InputFile(name, path, kind, nbytes, 1, f"{nbytes}-{status.st_mtime_ns}")
    if kind == PARQUET:
        if fields.settings:
            raise InputError(f"{name} is Parquet, and --json-input is for JSON lines; pass --text-field")
        table = scan_parquet(path, name, fields.text, fields.key, ids)
        return InputFile(name, path, kind, nbytes, table.rows, table.digest)
    objects = InputKind(
        f"a JSON object with the field {fields.text!r}",
        "an object",
        "name the field with --text-field",
        lambda text: read_json_line(text, fields.text),
    )
    InputFiles([str(path)]).check(objects if kind == JSON_LINES else IDS if ids else TEXT_LINES)
    lines = scan_lines(path, rows_each)
    return InputFile(name, path, kind, nbytes, lines.rows, lines.digest, lines)
