"""Resuming an interrupted run: the complete results in its output, after which the next run goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightbeam.deploy.errors import InputError

__all__ = ["WrittenResults", "read_written"]


@dataclass(frozen=True)
class WrittenResults:
    """The results at the beginning of an output file.

    Attributes
    ----------
    count : int
        Complete results, errors included.
    nbytes : int
        Bytes of the complete results. The beginning of another result may follow.
    last_line : bytes
        The last line of the last complete result; empty without results.
    """

    count: int = 0
    nbytes: int = 0
    last_line: bytes = b""

    def check(self, output: str, *, json_lines: bool, number: int, file: str | None) -> None:
        """Raise InputError if a run with other options or files wrote the output.

        Parameters
        ----------
        output : str
            The output's name.
        json_lines : bool
            Whether this run writes JSON lines.
        number, file
            The line and the file of the input that the last result should belong to.
        """
        record = _record(self.last_line)
        fix = "pass the options and files of the interrupted run, or another --output"
        if (record is not None) != json_lines:
            held = "JSON lines, and --json is missing" if record is not None else "no JSON lines, and --json is given"
            raise InputError(f"{output} holds {held}; {fix}")
        if record is not None and (record["line"], record.get("file")) != (number, file):
            place = f"line {number}" if file is None else f"{file}, line {number}"
            raise InputError(f"the last result in {output} does not belong to {place}; {fix}")


def read_written(output: str, lines_each: int) -> WrittenResults:
    """Count the complete results in an output file.

    Parameters
    ----------
    output : str
        Name of the output file. If it is missing, nothing was written.
    lines_each : int
        Lines of one result.

    Raises
    ------
    InputError
        The file cannot be read.
    """
    lines = nbytes = whole = 0
    last = b""
    try:
        with Path(output).open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                lines, nbytes = lines + 1, nbytes + len(line)
                if lines % lines_each == 0:
                    whole, last = nbytes, line
    except FileNotFoundError:
        return WrittenResults()
    except OSError as error:
        raise InputError(f"cannot read {output}: {(error.strerror or '').lower()}; pass another --resume") from None
    return WrittenResults(lines // lines_each, whole, last)


def _record(line: bytes) -> dict[str, Any] | None:
    """Parse a line as a result in JSON; return None for text."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and "line" in record else None
