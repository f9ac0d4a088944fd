"""The content of a file in a request: bytes, or base64 if the request is JSON."""

from __future__ import annotations

import base64
import binascii

from tightbeam.deploy.errors import InputError, short_repr

__all__ = ["as_upload", "file_bytes"]

ALPHABET = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\r\n")
HEAD = 64
"""First bytes, which tell the two apart: the header of every supported format has a byte that no text has."""


def file_bytes(data: bytes, name: str, most: int) -> bytes:
    """Return the content of a file, decoded if it is base64.

    Raises InputError for more than ``most`` bytes, and for broken base64. The error calls the input ``name``.
    """
    if len(data) > most * 4 // 3 + 4:
        raise InputError(f"{name} has {len(data):,} bytes, expected {most:,} at most; send a smaller file")
    if not data:
        return data
    if not ALPHABET.issuperset(data[:HEAD]):
        if _is_text(data[:HEAD]):
            given = short_repr(data[:HEAD].decode())
            raise InputError(
                f"{name} is the text {given}, expected the content of a file; send its bytes, or their base64"
            )
        return data
    try:
        return base64.b64decode(data.replace(b"\n", b"").replace(b"\r", b""), validate=True)
    except binascii.Error as error:
        raise InputError(f"{name} is broken base64 ({error}); pass the bytes of a file, or their base64") from None


def as_upload(data: bytes) -> bytes:
    """Return an uploaded file as `file_bytes` gives it back: in base64 if it could be taken for a text."""
    head = data[:HEAD]
    return base64.b64encode(data) if ALPHABET.issuperset(head) or _is_text(head) else data


def _is_text(data: bytes) -> bool:
    """True for bytes that are printable text, such as the name of a file."""
    try:
        return data.decode().isprintable()
    except UnicodeDecodeError:
        return False
