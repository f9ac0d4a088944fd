"""The output of a run, which is checked before the model is loaded, and opened after that."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tightbeam.deploy.errors import NO_NAME, InputError
from tightbeam.deploy.run_model.input_files import STDIN
from tightbeam.deploy.run_model.resume import WrittenResults

__all__ = ["STDOUT", "check_output", "open_output"]

STDOUT = "-"


def check_output(output: str, force: bool, inputs: Sequence[str], *, option: str) -> None:
    """Raise InputError for an output that cannot be written, or whose content would be lost."""
    if output == STDOUT:
        if sys.stdout is None:
            raise InputError("standard output is closed, so the results would be lost; redirect it to a file")
        if force:
            raise InputError("--force replaces the --output file; leave it out, or name one")
        return
    if not output.strip():
        raise InputError(f"{NO_NAME}; pass another {option}")
    path = Path(output)
    try:
        there = path.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"cannot write {output}: {(error.strerror or '').lower()}; pass another {option}") from None
    if path.is_dir():
        raise InputError(f"{output} is a folder; pass {option} the name of a file")
    if path.is_file() and any(os.path.samestat(there, used) for used in map(_status, inputs) if used is not None):
        raise InputError(f"{output} is one of the inputs too; pass another {option}")
    if path.is_file() and there.st_size and not force and option == "--output":
        raise InputError(f"{output} exists and is not empty; pass --force to replace it, or another --output")


def _status(source: str) -> os.stat_result | None:
    """Return the status of an input; None if it has no status. A missing input is reported later."""
    try:
        return os.fstat(sys.stdin.fileno()) if source == STDIN else os.stat(source)
    except (AttributeError, OSError, ValueError):  # standard input is closed or not a file, or the file is missing
        return None


@contextmanager
def open_output(output: str, written: WrittenResults | None) -> Iterator[TextIO]:
    """Open the stream for results. With ``written`` it begins after these results."""
    if output == STDOUT:
        yield sys.stdout
        return
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if written is None else 0), 0o666)
        if written is not None:
            os.ftruncate(descriptor, written.nbytes)
            os.lseek(descriptor, 0, os.SEEK_END)
    except OSError as error:
        option = "--output" if written is None else "--resume"
        raise InputError(f"cannot write {output}: {(error.strerror or '').lower()}; pass another {option}") from None
    with open(descriptor, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        yield file
