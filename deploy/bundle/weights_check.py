"""The weights file of a bundle, mapped into memory, and its comparison with its SHA-256 while the model loads.

The file is opened once, so the comparison reads the file that is mapped, even if its path names another file by then.
"""

from __future__ import annotations

import atexit
import hashlib
import mmap
import os
import threading
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from tightbeam.deploy.bundle.manifest import FileEntry
from tightbeam.deploy.bundle.verified import VerifiedFiles
from tightbeam.deploy.errors import BundleError

__all__ = ["MappedFile", "WeightsCheck", "changed", "map_file", "unreadable", "wrong_size"]

PART = 1 << 20
"""Bytes that are read at a time; a comparison that is stopped ends after one such part."""
MOST_SECONDS = 1.0
"""Longest wait at the exit of the interpreter for the part that is being read, such as one of a network disk."""


def changed(path: Path) -> BundleError:
    """Return the error of a file whose SHA-256 differs."""
    return BundleError(f"{path} was changed since the export (its SHA-256 differs); export the model again")


def unreadable(path: Path, error: OSError) -> BundleError:
    """Return the error of a file that the system cannot read."""
    return BundleError(f"{path} cannot be read ({error.strerror}); check its permissions and the disk")


def wrong_size(path: Path, size: int, entry: FileEntry) -> BundleError:
    """Return the error of a file that has another size than its entry."""
    return BundleError(f"{path} has {size} bytes, expected {entry.bytes}; export the model again")


@dataclass(frozen=True, eq=False)
class MappedFile:
    """A file that is mapped into memory, read-only.

    Attributes
    ----------
    path : Path
        The path by which it was opened.
    content : mmap or None
        Its bytes; None for an empty file.
    status : os.stat_result
        Its status when it was opened.
    """

    path: Path
    content: mmap.mmap | None
    status: os.stat_result

    def check_place(self) -> None:
        """Raise BundleError if the path names another file by now, or if the file was written to."""
        try:
            now = self.path.stat()
        except OSError as error:
            raise unreadable(self.path, error) from error
        if _identity(now) != _identity(self.status):
            raise BundleError(f"{self.path} was replaced while it was loaded; load the bundle again")

    def release_pages(self) -> None:
        """Remove the pages that were read from this process. Reading them again takes them from the system's cache."""
        if self.content is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.content.madvise(mmap.MADV_DONTNEED)


def map_file(path: Path, entry: FileEntry) -> MappedFile:
    """Map a file of a bundle into memory.

    Parameters
    ----------
    path : Path
    entry : FileEntry
        The file's entry in the manifest.

    Returns
    -------
    MappedFile

    Raises
    ------
    BundleError
        The file cannot be read, or its size differs from ``entry``.
    """
    mapped, stream = _open(path, entry)
    stream.close()
    return mapped


class WeightsCheck:
    """A comparison of a weights file with its SHA-256, which begins at once in a thread of its own.

    The thread ends early at `stop`, and at the exit of the interpreter.

    Parameters
    ----------
    path : Path
        The file, which is opened here.
    entry : FileEntry
        The file's entry in the manifest.
    verify : bool or VerifiedFiles
        A file that the record has is not compared; one that it lacks is added when it was.

    Attributes
    ----------
    file : MappedFile
        The file that is compared.

    Raises
    ------
    BundleError
        The file cannot be read, or has another size than ``entry``.
    """

    def __init__(self, path: Path, entry: FileEntry, verify: bool | VerifiedFiles = True) -> None:
        self.file, stream = _open(path, entry)
        self._sha256 = entry.sha256
        self._verified = verify if isinstance(verify, VerifiedFiles) else VerifiedFiles()
        self._equal = self._verified.has(entry.sha256, self.file.status)
        self._message: str | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._compare, args=(stream,), name="weights-check", daemon=True)
        if self._equal:
            stream.close()
            return
        atexit.register(self.stop, MOST_SECONDS)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the end of the comparison.

        Raises
        ------
        BundleError
            The file differs, or cannot be read. Every call raises it.
        """
        if self._equal:
            return
        self._thread.join()
        if self._message is not None:
            raise BundleError(self._message)
        if not self._equal:  # stopped, or forked while it ran
            path = self.file.path
            raise BundleError(f"{path} was not compared with its SHA-256 to the end; load the bundle again")

    def stop(self, seconds: float | None = None) -> None:
        """End the thread early, and wait until it has ended.

        Parameters
        ----------
        seconds : float, optional
            The longest wait; by default as long as the thread takes.
        """
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _compare(self, stream: FileIO) -> None:
        try:
            with stream:
                digest, part = hashlib.sha256(), memoryview(bytearray(PART))
                while count := stream.readinto(part):
                    if self._stopped.is_set():
                        return
                    digest.update(part[:count])
            if digest.hexdigest() == self._sha256:
                self._verified.add(self._sha256, self.file.status)
                self._equal = True
            else:
                self._message = str(changed(self.file.path))
        except OSError as error:
            self._message = str(unreadable(self.file.path, error))
        finally:
            atexit.unregister(self.stop)


def _open(path: Path, entry: FileEntry) -> tuple[MappedFile, FileIO]:
    try:
        stream = FileIO(path)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        status = os.fstat(stream.fileno())
        if status.st_size != entry.bytes:
            raise wrong_size(path, status.st_size, entry)
        content = mmap.mmap(stream.fileno(), entry.bytes, access=mmap.ACCESS_READ) if entry.bytes else None
    except OSError as error:
        stream.close()
        raise unreadable(path, error) from error
    except BundleError:
        stream.close()
        raise
    except ValueError as error:  # the file became shorter after its size was read
        size = os.fstat(stream.fileno()).st_size
        stream.close()
        raise wrong_size(path, size, entry) from error
    return MappedFile(path, content, status), stream


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
