"""The record of a format of documents, and the checks and the decoding that formats share."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass

from tightbeam.deploy.documents.passages import Document
from tightbeam.deploy.errors import InputError

__all__ = ["MOST_BYTES", "Format", "check_size", "decoded"]

MOST_BYTES = 1 << 24
"""Bound on the bytes of a document."""
MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks, and their encodings."""


@dataclass(frozen=True)
class Format:
    """A format of documents.

    Attributes
    ----------
    name : str
        What a user calls it: the name of its file in ``formats/``.
    endings : tuple of str
        Endings of the names of its files, such as ".md".
    read : function
        Reads the bytes of a document. Raises InputError.
    binary : bool
        True if a document is not text.
    """

    name: str
    endings: tuple[str, ...]
    read: Callable[[bytes], Document]
    binary: bool = False


def check_size(data: bytes) -> None:
    """Raise InputError for a document that is too large."""
    if len(data) > MOST_BYTES:
        raise InputError(f"the document has more than {MOST_BYTES:,} bytes; cut it into documents of that at most")


def decoded(data: bytes) -> tuple[str, Callable[[str], bytes]]:
    """Decode a document in UTF-8, or in UTF-16 with a byte order mark.

    Returns
    -------
    str
        Its text, without the byte order mark.
    function
        Encodes another text the same way.

    Raises
    ------
    InputError
        It is too large, or in another encoding.
    """
    check_size(data)
    mark, encoding = next((known for known in MARKS if data.startswith(known[0])), (b"", "utf-8"))
    try:
        text = data[len(mark) :].decode(encoding)
    except UnicodeDecodeError as error:
        at = len(mark) + error.start
        found = f"byte {at} is 0x{data[at]:02x}"
        raise InputError(f"the document is not {encoding.upper()} ({found}); convert it") from None
    if "\0" in text:
        raise InputError("the document has a NUL byte, so it is not text; pass a document in a known format")
    return text, lambda new: mark + new.encode(encoding)
