"""Atomic writing of folders: a bundle, an engine in a bundle, a model in Triton's repository."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

__all__ = ["write_folder"]

Made = TypeVar("Made")


def write_folder(
    destination: Path, fill: Callable[[Path], Made], *, force: bool = False, workplace: Path | None = None
) -> Made:
    """Write a folder atomically: it gets the name ``destination`` when it is complete. A failure leaves nothing.

    Parameters
    ----------
    destination : Path
    fill : callable
        Writes into an empty folder.
    force : bool
        Replace an existing folder, at the very end.
    workplace : Path, optional
        Parent of the incomplete folder, on the same disk; by default the parent of ``destination``.

    Returns
    -------
    The result of ``fill``.

    Raises
    ------
    OSError
        A folder cannot be written. Exceptions of ``fill`` are not caught.
    """
    workplace = workplace or destination.absolute().parent
    partial = Path(tempfile.mkdtemp(prefix=f".{destination.name}.partial-", dir=workplace))
    try:
        partial.chmod(0o755)
        made = fill(partial)
        _sync(partial)
        _move_into_place(partial, destination, workplace, force=force)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return made


def _move_into_place(partial: Path, destination: Path, workplace: Path, *, force: bool) -> None:
    if force and destination.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{destination.name}.old-", dir=workplace))
        try:
            destination.rename(old / destination.name)
            partial.rename(destination)
        finally:
            if not destination.exists():  # after an error or Ctrl-C the old one is restored
                (old / destination.name).rename(destination)
            shutil.rmtree(old, ignore_errors=True)
    else:
        partial.rename(destination)
    _sync_entry(destination.absolute().parent)


def _sync(folder: Path) -> None:
    """Flush everything in the folder to disk, so that it is complete after a power cut."""
    for path in (*folder.rglob("*"), folder):
        _sync_entry(path)


def _sync_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
