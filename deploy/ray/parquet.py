"""Parquet files: their rows and column types, and the rows of a partition."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightbeam.deploy.errors import InputError, first_line
from tightbeam.deploy.ray.library import optional_library
from tightbeam.deploy.ray.partition import Partition

__all__ = ["ParquetScan", "read_table", "scan_parquet"]

MAGIC_BYTES = 8
"""Bytes at the end of a file: four with the footer's length, and PAR1."""


@dataclass(frozen=True)
class ParquetScan:
    """Rows of a file.

    Attributes
    ----------
    rows : int
    digest : str
        BLAKE2b of the footer, which has offsets and statistics of all columns.
    """

    rows: int
    digest: str


def scan_parquet(path: Path, name: str, column: str, key: str | None, ids: bool) -> ParquetScan:
    """Read the footer of a file, and check its columns.

    Raises
    ------
    InputError
        The file is not Parquet, lacks a column, or has texts of another type.
    OSError
        The file cannot be read.
    """
    parquet, arrow = optional_library("pyarrow.parquet"), optional_library("pyarrow")
    try:
        with parquet.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (arrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None):  # of the file system
            raise
        raise InputError(f"{name} cannot be read as Parquet ({first_line(error)}); write it again") from None
    for wanted, option in ((column, "--text-field"), (key, "--key-field")):
        if wanted is not None and schema.names.count(wanted) != 1:
            found = ", ".join(schema.names[:8]) or "none"
            raise InputError(f"{name} has no column {wanted!r}, its columns are {found}; pass {option}")
    kind = schema.field(column).type
    if isinstance(kind, arrow.DictionaryType):
        kind = kind.value_type
    types = arrow.types
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    is_list = types.is_list(kind) or types.is_large_list(kind)
    is_messages = is_list and types.is_struct(kind.value_type)
    if not (is_list and types.is_integer(kind.value_type) if ids else is_text or is_messages):
        texts = "strings (pass --ids for lists of token ids), or lists of messages"
        expected = "lists of integers" if ids else texts
        raise InputError(f"column {column!r} of {name} is {kind}, expected {expected}")
    with path.open("rb") as stream:
        stream.seek(-MAGIC_BYTES, 2)
        footer_bytes = int.from_bytes(stream.read(4), "little")
        stream.seek(-MAGIC_BYTES - footer_bytes, 2)
        return ParquetScan(rows, hashlib.blake2b(stream.read(), digest_size=16).hexdigest())


def read_table(partition: Partition, columns: list[str]) -> Any:
    """Read columns of a partition's rows as an Arrow table.

    Raises
    ------
    InputError
        The file cannot be decoded, or its rows have changed.
    OSError
        The file cannot be read.
    """
    parquet, arrow = optional_library("pyarrow.parquet"), optional_library("pyarrow")
    start, stop = partition.first - 1, partition.first - 1 + partition.rows
    try:
        with parquet.ParquetFile(partition.path) as file:
            first = before = 0
            groups: list[int] = []
            for group in range(file.metadata.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if before < stop and before + rows > start:
                    first = first if groups else before
                    groups.append(group)
                before += rows
            table = file.read_row_groups(groups, columns=columns).slice(start - first, partition.rows)
    except (arrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None):  # of the file system
            raise
        raise InputError(f"{partition.file} cannot be decoded ({first_line(error)}); write it again") from None
    if table.num_rows != partition.rows:
        raise InputError(f"{partition.file} has changed while it was run; run it again when it is whole")
    return table
