"""Lines in the server's log, which is the standard error of backend and worker."""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress

__all__ = ["log", "log_exception"]


def log(message: str) -> None:
    """Write a message; drop it if the log takes no more, as on a full disk. The caller goes on in either case."""
    with suppress(OSError, ValueError):
        print(message, file=sys.stderr, flush=True)


def log_exception(error: Exception) -> None:
    """Write an exception with its traceback."""
    log("".join(traceback.format_exception(error)).rstrip())
