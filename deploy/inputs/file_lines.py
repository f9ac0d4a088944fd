"""Lines that each name a file: a name alone, or JSON with settings for this file in the other fields."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tightbeam.deploy.errors import InputError, short_repr
from tightbeam.deploy.inputs.json_line import read_json_line
from tightbeam.deploy.inputs.lines import check_length

__all__ = ["FileLine", "file_lines", "named_files"]


@dataclass(frozen=True)
class FileLine:
    """The name of a file, and settings of ``model.generate`` for it alone."""

    name: str
    settings: Mapping[str, Any]


def named_files(lines: Iterable[bytes], kind: str) -> Iterator[str | InputError]:
    """Yield the file name in each line, or an error if it is neither UTF-8 nor the name of an existing file."""
    for number, line in enumerate(lines):
        name = (line.removeprefix(codecs.BOM_UTF8) if not number else line).rstrip(b"\r\n")
        try:
            check_length(name)
            yield name.decode()
        except InputError as error:
            yield error
        except UnicodeDecodeError:
            if os.path.exists(name):
                yield os.fsdecode(name)
                continue
            yield InputError(f"{short_repr(line)} is not UTF-8; expected the name of {kind}")


def file_lines(lines: Iterable[str | InputError], field: str) -> Iterator[FileLine | InputError]:
    """Read JSON lines that have the name of a file in ``field``. Yields an error in place of a bad line."""
    for line in lines:
        try:
            if isinstance(line, InputError):
                raise line
            name, settings = read_json_line(line, field)
            if not isinstance(name, str):
                raise InputError(f"{field} is {type(name).__name__}, expected the name of a file; pass it in quotes")
            yield FileLine(name, settings)
        except InputError as error:
            yield error
