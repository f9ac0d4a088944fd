"""A command in a process of its own, whose lines of output show how far it is."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence

from tightbeam.deploy.runtimes.process.environment import with_huge_pages

__all__ = ["run_counted"]


def run_counted(
    command: Sequence[str], on_line: Callable[[int, bytes], None], given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end.

    Parameters
    ----------
    command
        Program and arguments.
    on_line
        Called with each line of its standard output as it comes, after the number of lines so far.
    given
        Its standard input.

    Returns
    -------
    CompletedProcess
        Exit code, and what it wrote to standard output and standard error.
    """
    lines: list[bytes] = []
    with tempfile.TemporaryFile() as inputs, tempfile.TemporaryFile() as errors:
        inputs.write(given)
        inputs.seek(0)
        environment = with_huge_pages(os.environ)
        with subprocess.Popen(command, stdin=inputs, stdout=subprocess.PIPE, stderr=errors, env=environment) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    lines.append(line)
                    on_line(len(lines), line)
            except BaseException:  # Ctrl-C
                process.kill()
                raise
        errors.seek(0)
        return subprocess.CompletedProcess(command, process.returncode, b"".join(lines), errors.read())
