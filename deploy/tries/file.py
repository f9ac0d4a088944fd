"""A trie as one file: a header of 64 bytes, then the arrays as they are in memory, which readers map.

    bytes   0 to 7     TBTRIE and two zero bytes
            8 to 15    uint32: the format's version, 1; the CRC-32 of all that follows the header
           16 to 47    uint64: edges, vocabulary, entries, tokens of the longest entry
           48 to 63    zero
           64 on       int32 [edges + 3] offsets, int32 [edges] tokens (trie.py), little-endian

A reader checks the whole file, so a damaged file is an error before any search uses it. The file stays mapped while it
is in use: replace it by a new file of the same name, as ``write_trie`` does, and never write into it.
"""

from __future__ import annotations

import glob
import os
import stat
import struct
import sys
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np

from tightbeam.deploy.arrays import Nodes
from tightbeam.deploy.bundle.atomic_file import remove_partial, write_file
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.tries.trie import Trie

__all__ = ["check_tries", "read_trie", "write_trie"]

MAGIC = b"TBTRIE\0\0"
VERSION = 1
HEADER = struct.Struct("<8sII4Q16s")
OPEN = 16
"""Files that stay mapped after their last use."""


def write_trie(trie: Trie, path: str | os.PathLike[str]) -> None:
    """Write a trie, whole or not at all.

    Parameters
    ----------
    trie : Trie
    path : str or path
        The file, which is replaced if it exists.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    target = Path(path)
    arrays = [np.ascontiguousarray(array, "<i4") for array in (trie.offsets, trie.tokens)]
    crc = zlib.crc32(arrays[1].data, zlib.crc32(arrays[0].data))
    header = HEADER.pack(MAGIC, VERSION, crc, len(trie.tokens), trie.vocabulary, trie.entries, trie.longest, bytes(16))
    try:
        remove_partial(target.parent.glob(f".{glob.escape(target.name)}.*"))
        write_file(target, [header, *(array.data for array in arrays)])
    except OSError as error:
        raise InputError(
            f"cannot write {target}: {(error.strerror or str(error)).lower()}; choose another file"
        ) from None


def read_trie(path: str | os.PathLike[str]) -> Trie:
    """Map a file that ``write_trie`` made, and check it.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    Trie
        The same object for the same file, as long as the file is not replaced.

    Raises
    ------
    InputError
        The file cannot be read, or is damaged.
    """
    try:
        found = os.stat(path)
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):  # reading a pipe could take for ever
            raise InputError(f"the trie {os.fspath(path)!r} is not a regular file; make one with build-trie")
        return _read(os.path.realpath(path), found.st_ino, found.st_size, found.st_mtime_ns)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        if isinstance(error, InputError):
            raise
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise InputError(f"cannot read the trie {os.fspath(path)!r}: {reason}; make one with build-trie") from None


@lru_cache(OPEN)
def _read(path: str, inode: int, size: int, changed_ns: int) -> Trie:
    def damaged(what: str) -> InputError:
        return InputError(f"{path} is not a whole trie: {what}; make it again with build-trie")

    with open(path, "rb") as file:
        start = file.read(HEADER.size)
    if len(start) < HEADER.size or not start.startswith(MAGIC):
        raise damaged("it has no header of one")
    _, version, crc, edges, vocabulary, entries, longest, _ = HEADER.unpack(start)
    if version != VERSION:
        raise damaged(f"it has version {version}, expected {VERSION}")
    expected = HEADER.size + 4 * (2 * edges + 3)
    if size != expected or not edges:
        raise damaged(f"it has {size:,} bytes, expected {expected:,}")
    data = np.asarray(np.memmap(path, "<i4", "r", HEADER.size))
    if sys.byteorder == "big":
        data = data.astype(np.int32)
    if len(data) != 2 * edges + 3 or zlib.crc32(data.data) != crc:
        raise damaged("its checksum differs")
    offsets, tokens = data[: edges + 3], data[edges + 3 :]
    if not (_is_trie(offsets, tokens) and int(tokens.max()) < vocabulary):
        raise damaged("its arrays contradict each other")
    return Trie(offsets, tokens, vocabulary, entries, longest, path)


def _is_trie(offsets: Nodes, tokens: Nodes) -> bool:
    """Return True if the offsets ascend over all edges, edges lead to later nodes, and a node's tokens ascend."""
    edges = len(tokens)
    if offsets[1] != 0 or offsets[-1] != edges or (offsets[1:] < offsets[:-1]).any() or offsets[0] != 0:
        return False
    inner = offsets[1:-1] < offsets[2:]  # nodes from 1 on that have edges
    first = offsets[1:-1][inner]
    if (first + 2 <= np.flatnonzero(inner) + 1).any() or tokens.min() < 0:
        return False
    begins = np.zeros(edges, np.bool_)
    begins[first] = True
    return bool((begins[1:] | (tokens[1:] > tokens[:-1])).all())


def check_tries(files: Iterable[str], vocabulary: int) -> None:
    """Raise InputError for files of tries that cannot be used with a model of so many tokens."""
    for file in files:
        trie = read_trie(file)
        if trie.vocabulary > vocabulary:
            raise InputError(
                f"{file} holds token {trie.vocabulary - 1}, outside the vocabulary of {vocabulary}; "
                "build it with this bundle"
            )
