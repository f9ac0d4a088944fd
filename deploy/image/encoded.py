"""The content of an image file in a request: bytes, or base64 where the request is JSON."""

from __future__ import annotations

import base64
import binascii

from tightbeam.deploy.errors import InputError

__all__ = ["MAX_BYTES", "image_bytes"]

MAX_BYTES = 1 << 26
"""Bytes of the largest file in a request."""
ALPHABET = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\r\n")
HEAD = 64
"""Bytes that tell the two apart: the header of each format that is read has one that base64 never has."""


def image_bytes(data: bytes, name: str) -> bytes:
    """The content of an image file, decoded where it is base64.

    Raises InputError for too many bytes, and for broken base64; ``name`` is what the error calls the input.
    """
    if len(data) > MAX_BYTES * 4 // 3 + 4:
        raise InputError(f"{name} has {len(data):,} bytes, expected {MAX_BYTES:,} at most; resize the image")
    if not data or not ALPHABET.issuperset(data[:HEAD]):
        return data
    try:
        return base64.b64decode(data.replace(b"\n", b"").replace(b"\r", b""), validate=True)
    except binascii.Error as error:
        raise InputError(
            f"{name} is broken base64 ({error}); pass the bytes of an image file, or their base64"
        ) from None
