"""Partitions of the input. A partition is rows of one file; one actor runs it, and its results are one file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["JSON_LINES", "PARQUET", "SOUND", "TEXT", "FieldNames", "Partition"]

TEXT, JSON_LINES, PARQUET, SOUND = "text", "json-lines", "parquet", "sound"
"""Kinds of files: a text in each line; an object in each line; a table; one recording."""


@dataclass(frozen=True)
class FieldNames:
    """Fields of JSON lines, or columns of Parquet.

    Attributes
    ----------
    text : str
        The field of the text, or of the token ids.
    key : str or None
        The field of the key, which is copied to the results.
    settings : bool
        The other fields are settings of the row alone.
    """

    text: str = "text"
    key: str | None = None
    settings: bool = False


@dataclass(frozen=True)
class Partition:
    """Rows of a file.

    Attributes
    ----------
    index : int
        Number of the partition among all, from 0.
    file : str
        Name of the file, as results have it.
    path : str
        Its absolute path.
    kind : str
        TEXT, JSON_LINES, PARQUET or SOUND.
    first : int
        Number of the first row in the file, from 1.
    rows : int
    offset, nbytes : int
        The rows' bytes in the file; 0 for Parquet and recordings.
    """

    index: int
    file: str
    path: str
    kind: str
    first: int
    rows: int
    offset: int = 0
    nbytes: int = 0

    @property
    def place(self) -> str:
        """The rows, as in error messages."""
        return f"{self.file}, rows {self.first} to {self.first + self.rows - 1}"

    def to_json(self) -> str:
        """Return the partition as one line, for an actor."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Partition:
        """Return the partition that ``to_json`` wrote."""
        return cls(**json.loads(text))
