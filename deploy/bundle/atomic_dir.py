"""Atomic writing of folders: a bundle, an engine in a bundle, a model in Triton's repository."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

try:
    import fcntl
except ImportError:  # Windows, where a folder has no lock
    fcntl = None  # type: ignore[assignment]

__all__ = ["incomplete_folder", "write_folder"]

Made = TypeVar("Made")
LOCKS: bool = fcntl is not None
HERE, EXCHANGE = -100, 2
"""``AT_FDCWD`` and ``RENAME_EXCHANGE`` of Linux."""
STALE_SECONDS = 86_400.0
"""Age from which on, without locks, an incomplete folder was left by a process that was killed."""


def write_folder(
    destination: Path, fill: Callable[[Path], Made], *, force: bool = False, workplace: Path | None = None
) -> Made:
    """Write a folder atomically: it gets the name ``destination`` when it is complete. A failure leaves nothing.

    A process that is killed leaves its incomplete folder. The next writer of the same folder removes it.

    Parameters
    ----------
    destination : Path
    fill : callable
        Writes into an empty folder.
    force : bool
        Replace an existing folder, at the very end. If the system can exchange two names in one step, a folder of this
        name exists at every moment.
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
    with incomplete_folder(workplace or destination.absolute().parent, destination.name) as partial:
        made = fill(partial)
        _sync(partial)
        _move_into_place(partial, destination, force=force)
    return made


@contextmanager
def incomplete_folder(workplace: Path, name: str) -> Iterator[Path]:
    """Context with a new folder ``.NAME.partial-...``, which is removed at its end unless it was renamed.

    Those of this name that killed processes left are removed first.

    Parameters
    ----------
    workplace : Path
        Its parent.
    name : str
    """
    prefix = f".{name}.partial-"
    _remove_left_behind(workplace, prefix)
    with _locked_folder(workplace / f"{prefix}{secrets.token_hex(4)}") as path:
        yield path


@contextmanager
def _locked_folder(path: Path) -> Iterator[Path]:
    """Context with a new folder, which is removed at the end unless it has another name then. It is locked until the
    process ends at the latest, if the file system has locks."""
    new = path.with_name(f".new-{secrets.token_hex(8)}")
    new.mkdir()
    descriptor = os.open(new, os.O_RDONLY) if LOCKS else None
    try:
        if descriptor is not None:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(path)  # it has its name when it is locked
        yield path
    finally:
        if descriptor is not None:
            os.close(descriptor)
        if path.is_symlink():  # what it replaced
            path.unlink()
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(new, ignore_errors=True)


def _remove_left_behind(workplace: Path, prefix: str) -> None:
    """Remove the incomplete folders whose writers were killed: nobody has locked them, or they are old."""
    for folder in workplace.iterdir():
        if folder.name.startswith(prefix) and folder.is_dir() and not folder.is_symlink():
            with suppress(OSError):
                if not LOCKS:
                    if folder.stat().st_mtime < time.time() - STALE_SECONDS:
                        shutil.rmtree(folder, ignore_errors=True)
                    continue
                descriptor = os.open(folder, os.O_RDONLY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(descriptor)


def _move_into_place(partial: Path, destination: Path, *, force: bool) -> None:
    """Rename a folder. With ``force`` the folder that was there gets the name ``partial``, for the caller to remove."""
    if not force or not destination.exists():
        partial.rename(destination)
    elif not _exchanged(partial, destination):
        old = partial.with_name(f"{partial.name}.old")
        try:
            destination.rename(old)
            partial.rename(destination)
        finally:
            if not destination.exists():  # after an error or Ctrl-C the old one is restored
                old.rename(destination)
            shutil.rmtree(old, ignore_errors=True)
    _sync_entry(destination.absolute().parent)


def _exchanged(first: Path, second: Path) -> bool:
    """Exchange the names of two folders in one step; returns False if the system cannot do that."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (TypeError, AttributeError):  # Windows, macOS
        return False
    if rename(HERE, os.fsencode(first), HERE, os.fsencode(second), EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS):  # of the file system, or of the kernel
        return False
    raise OSError(code, os.strerror(code), str(second))


def _sync(folder: Path) -> None:
    """Flush everything in the folder to disk, so that it is complete after a power cut."""
    for path in (*folder.rglob("*"), folder):
        _sync_entry(path)


def _sync_entry(path: Path) -> None:
    if not LOCKS and path.is_dir():  # Windows opens no folder
        return
    descriptor = os.open(path, os.O_RDONLY if LOCKS else os.O_RDWR)  # Windows flushes what may be written alone
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
