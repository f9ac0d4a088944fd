"""Folders that are whole or not there: a bundle, an engine in one, a model in Triton's repository."""

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
    """``fill`` writes into an empty folder, which then takes the name ``destination``; returns what it returns.

    With ``force`` an existing folder is replaced, at the very end; after a failure nothing is left. ``workplace``:
    where the folder stands until then, on the same disk; by default beside its place. Raises OSError, and what
    ``fill`` raises.
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
            if not destination.exists():  # after an error or Ctrl-C the old one goes back
                (old / destination.name).rename(destination)
            shutil.rmtree(old, ignore_errors=True)
    else:
        partial.rename(destination)
    _sync_entry(destination.absolute().parent)


def _sync(folder: Path) -> None:
    """Everything in the folder, so that after a power cut what has its name is whole."""
    for path in (*folder.rglob("*"), folder):
        _sync_entry(path)


def _sync_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
