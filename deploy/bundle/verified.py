"""Files that were compared with their SHA-256 before, so that a process that starts again need not read them whole."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable

__all__ = ["VerifiedFiles"]

SETTLED_NS = 2_000_000_000
"""A file that changed less than this time ago is not recorded: a second change within one tick of the file system's
clock would leave its times as they are."""


class VerifiedFiles:
    """Record of files that had the right SHA-256.

    A file counts as unchanged while its device, inode, size, time of modification and time of status change are those
    of the comparison. A program can set the time of modification, but not the time of status change.

    Parameters
    ----------
    fingerprints : iterable of str
        The ``fingerprints`` of an earlier record.
    """

    def __init__(self, fingerprints: Iterable[str] = ()) -> None:
        self._fingerprints = set(fingerprints)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """A digest for each file, of its SHA-256 and its status."""
        return tuple(sorted(self._fingerprints))

    def has(self, sha256: str, status: os.stat_result) -> bool:
        """Return True if a file of this status had this SHA-256."""
        return _fingerprint(sha256, status) in self._fingerprints

    def add(self, sha256: str, status: os.stat_result) -> None:
        """Record a file that has this SHA-256. ``status`` was taken before the comparison began."""
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED_NS:
            self._fingerprints.add(_fingerprint(sha256, status))


def _fingerprint(sha256: str, status: os.stat_result) -> str:
    parts = (sha256, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
