"""Atomic writing of files: tries, results of a cluster, records of a run."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["remove_partial", "write_file"]

PARTIAL = ".partial-"
"""Mark in the names of files that are being written."""
STALE_SECONDS = 3600.0
"""Age from which on nobody writes an incomplete file any more: its content is in memory before it is made."""


def write_file(path: Path, parts: Iterable[bytes | memoryview], *, writer: str = "") -> None:
    """Write a file atomically: it appears when it is complete, and replaces an older one. A failure leaves nothing.

    Parameters
    ----------
    path : Path
        The file, in a folder that exists. Its permissions follow the umask of this process.
    parts : iterable of bytes
        Its content.
    writer : str
        Name of the run that writes it, for `remove_partial`.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    partial = path.with_name(f".{path.name}{PARTIAL}{writer}-{secrets.token_hex(4)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        with open(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise


def remove_partial(paths: Iterable[Path], *, writer: str | None = None) -> None:
    """Remove incomplete files whose writers were killed.

    Parameters
    ----------
    paths : iterable of Path
        Paths of which some may be incomplete files; all others are left alone.
    writer : str, optional
        A run of which nothing writes any more. Files of other runs are removed when they are `STALE_SECONDS` old.
    """
    for path in paths:
        if not path.name.startswith(".") or PARTIAL not in path.name:
            continue
        with suppress(OSError):
            own = writer is not None and f"{PARTIAL}{writer}-" in path.name
            if own or path.lstat().st_mtime < time.time() - STALE_SECONDS:
                path.unlink()
