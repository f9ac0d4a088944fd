"""Text and JSON lines: the beginnings of a file's partitions, and the rows of a partition."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.ray.partition import JSON_LINES, FieldNames, Partition

__all__ = ["LineScan", "read_lines", "scan_lines"]

CHUNK_BYTES = 1 << 22
"""Bytes read at a time to find lines."""


@dataclass(frozen=True)
class LineScan:
    """Lines of a file.

    Attributes
    ----------
    rows : int
        Number of lines.
    bounds : list of int
        Byte offset of each partition, and the end of the last one.
    digest : str
        BLAKE2b of the content.
    """

    rows: int
    bounds: list[int]
    digest: str


def scan_lines(path: Path, rows_each: int) -> LineScan:
    """Find the partitions of a file. Raises OSError."""
    digest = hashlib.blake2b(digest_size=16)
    bounds, lines, position, ended = [0], 0, 0, True
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
            first = rows_each - lines % rows_each - 1
            bounds += (ends[first::rows_each] + position + 1).tolist()
            lines, position = lines + len(ends), position + len(chunk)
            ended = chunk.endswith(b"\n")
    if bounds[-1] != position:
        bounds.append(position)
    return LineScan(lines + (not ended), bounds, digest.hexdigest())


def read_lines(partition: Partition, fields: FieldNames) -> tuple[list[bytes], list[Any]]:
    """Read the rows of a partition.

    Returns
    -------
    lines : list of bytes
        Lines for `run_rows`. An object has only the fields that are read there; one without a text is unchanged.
    keys : list
        The rows' keys; None for text.

    Raises
    ------
    InputError
        The file has changed.
    OSError
        The file cannot be read.
    """
    with Path(partition.path).open("rb") as file:
        file.seek(partition.offset)
        data = file.read(partition.nbytes)
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if len(data) != partition.nbytes or len(lines) != partition.rows:
        raise InputError(f"{partition.file} has changed while it was run; run it again when it is whole")
    if partition.kind != JSON_LINES:
        return lines, [None] * len(lines)
    read = [_split(line, fields) for line in lines]
    return [line for line, _ in read], [key for _, key in read]


def _split(line: bytes, fields: FieldNames) -> tuple[bytes, Any]:
    """Return an object's line for `run_rows`, and its key."""
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        return line, None
    key = row.get(fields.key) if fields.key is not None else None
    if fields.text not in row or (fields.settings and fields.key is None):
        return line, key  # also one with a field twice, which is an error of its settings
    left = row if fields.settings else {fields.text: row[fields.text]}
    if fields.key != fields.text:
        left = {name: value for name, value in left.items() if name != fields.key}
    return json.dumps(left).encode(), key
