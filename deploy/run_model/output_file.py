"""The output of a run, which is checked before the model is loaded, and opened after that."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedWriter, FileIO, TextIOWrapper
from pathlib import Path
from typing import Any, TextIO

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
def open_output(output: str, written: WrittenResults | None, on_begin: Callable[[], None]) -> Iterator[TextIO]:
    """Open the stream for results. What the file holds is kept until the first result is written, or the run ends.

    Parameters
    ----------
    output : str
    written : WrittenResults or None
        Results at the beginning of the file that are kept; None replaces its content.
    on_begin : callable
        Is called before the first result of a file that keeps none.
    """
    if output == STDOUT:
        yield sys.stdout
        return
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT, 0o666)
    except OSError as error:
        option = "--output" if written is None else "--resume"
        raise InputError(f"cannot write {output}: {(error.strerror or '').lower()}; pass another {option}") from None
    raw = _Results(descriptor, 0 if written is None else written.nbytes, on_begin)
    with TextIOWrapper(BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        yield file
        raw.begin()  # a run without results replaces older ones, too


class _Results(FileIO):
    """A file that is cut after ``kept`` bytes when it is first written to."""

    def __init__(self, descriptor: int, kept: int, on_begin: Callable[[], None]) -> None:
        super().__init__(descriptor, "w")
        self._kept, self._on_begin = kept, on_begin
        self._begun = not stat.S_ISREG(os.fstat(descriptor).st_mode)  # a pipe or a device

    def begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        os.ftruncate(self.fileno(), self._kept)
        self.seek(self._kept)
        if not self._kept:
            self._on_begin()

    def write(self, data: Any, /) -> int | None:  # type: ignore[override]
        self.begin()
        return super().write(data)
