"""The commands that an export starts, run in this process, since one of its own takes a second for its imports."""

from __future__ import annotations

import importlib
import io
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from subprocess import CompletedProcess
from unittest.mock import patch

from tightbeam.export.accuracy import parity, precision_error

__all__ = ["commands_of_exports"]

Run = Callable[..., CompletedProcess[bytes]]


@contextmanager
def commands_of_exports(run: Run | None = None) -> Iterator[None]:
    """Exports run their commands by ``run``, which is given what ``run_counted`` is; in this process by default."""
    run = run or _run_here
    with patch.object(parity, "run_counted", run), patch.object(precision_error, "run_counted", run):
        yield


def _run_here(
    command: Sequence[str], on_line: Callable[[int, bytes], None], given: bytes = b""
) -> CompletedProcess[bytes]:
    """The result of ``run_counted`` for a command of Python: ``-m MODULE`` that has a function ``main``, or ``-c``."""
    _, option, program, *arguments = command
    inputs, out, errors = (io.TextIOWrapper(io.BytesIO(each), "utf-8") for each in (given, b"", b""))
    code: int | str | None = 0
    with (
        patch.object(sys, "argv", [option, *arguments]),
        patch.object(sys, "stdin", inputs),
        redirect_stdout(out),
        redirect_stderr(errors),
    ):
        try:
            if option == "-m":
                importlib.import_module(program).main()
            else:
                exec(program, {"__name__": "__main__"})
        except SystemExit as ended:
            code = ended.code
        except Exception:
            code = 1
            traceback.print_exc()
    said = [_written(each) for each in (out, errors)]
    if isinstance(code, str):
        said[1] += f"{code}\n".encode()
        code = 1
    for number, line in enumerate(said[0].splitlines(keepends=True), start=1):
        on_line(number, line)
    return CompletedProcess(list(command), code or 0, *said)


def _written(stream: io.TextIOWrapper) -> bytes:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue()
