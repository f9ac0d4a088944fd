"""A bound on the comments of a sound file: FFmpeg compares each with all before it, minutes for a file of 1 MB.

Comments of FLAC, Ogg and Matroska are counted before FFmpeg reads them, since it reads all of them at once. ID3 tags
and the comments of WAV and AIFF are hidden from it. In other formats it reads further bytes in between, and is stopped
there.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Literal

__all__ = ["MOST_COMMENTS", "without_comments"]

MOST_COMMENTS = 4096
"""Comments of a file."""
LONG = 1 << 13
"""Bytes from which on a packet of an Ogg file is searched for comments. Shorter ones are read one by one."""
BEGINNINGS = (0, 4, 7, 8)
"""Bytes of a packet before its comments: of Speex, FLAC, Vorbis and Opus."""
MOST_PAGES = 1 << 19
"""Pages of an Ogg file. An hour in packets of 20 ms, each in a page of its own, has 180,000."""
REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
PACKET = re.compile(rb"\xff*[^\xff]|\xff+")
"""The lengths of a packet's segments in a page. One that ends in 255 goes on in the next page."""
SIMPLE_TAG = b"\x67\xc8"
"""The beginning of a comment in a Matroska file; sound has these bytes once in 65,536."""
COMMENTS, LAST_BLOCK = 4, 0x80
MOST_CHUNKS = 1 << 14
"""Chunks of a WAV or AIFF file that are searched for comments."""


def without_comments(data: bytes) -> bytes:
    """Return a file without the ID3 tags that may stand before any format, and without the comments of WAV and AIFF.

    Raises ValueError for more than ``MOST_COMMENTS`` of the format's own, or an Ogg file of too many pages.
    """
    while data.startswith(b"ID3") and len(data) >= 10:
        size = sum((byte & 127) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True))
        data = data[10 + size + (10 if data[5] & 0x10 else 0) :]
    if data[8:12] in (b"WAVE", b"AIFF", b"AIFC"):
        return _without_comment_chunks(data)
    if data.startswith(b"OggS"):
        count = sum(max(_count([packet[begin:]]) for begin in BEGINNINGS) for packet in _long_packets(data))
    elif data.startswith(b"fLaC"):
        count = _count(_flac_comments(data, 0))
    elif data.startswith(b"\x1aE\xdf\xa3"):
        count = max(0, data.count(SIMPLE_TAG) - len(data) // 8192)
        for flac in islice(re.finditer(b"fLaC", data), MOST_COMMENTS):
            count += _count(_flac_comments(data, flac.start()))
    else:
        count = 0
    if count > MOST_COMMENTS:
        raise ValueError(f"it has more than {MOST_COMMENTS:,} comments")
    return data


def _without_comment_chunks(data: bytes) -> bytes:
    """Give the chunks of comments a name that no reader knows."""
    order: Literal["little", "big"] = "big" if data.startswith(b"FORM") else "little"
    at, found = 12, list[int]()
    for _ in range(MOST_CHUNKS):
        if at + 8 > len(data):
            break
        if data[at : at + 4] in (b"ID3 ", b"id3 ", b"LIST"):
            found.append(at)
        length = int.from_bytes(data[at + 4 : at + 8], order)
        at += 8 + length + length % 2
    if not found:
        return data
    hidden = bytearray(data)
    for at in found:
        hidden[at : at + 4] = b"JUNK"
    return bytes(hidden)


def _flac_comments(data: bytes, begin: int) -> Iterator[bytes]:
    """Yield the blocks of comments of a FLAC file that begins at a place."""
    at, head = begin + 4, 0
    while at + 4 <= len(data) and not head & LAST_BLOCK:
        head, length = data[at], int.from_bytes(data[at + 1 : at + 4], "big")
        if head & ~LAST_BLOCK == COMMENTS:
            yield data[at + 4 : at + 4 + length]
        at += 4 + length


def _count(blocks: Iterator[bytes] | list[bytes]) -> int:
    """Count the comments of blocks, up to one more than there may be."""
    count = 0
    for block in blocks:
        at = 4 + int.from_bytes(block[:4], "little")
        stated, at = int.from_bytes(block[at : at + 4], "little"), at + 4
        while stated > 0 and at + 4 <= len(block) and count <= MOST_COMMENTS:
            at += 4 + int.from_bytes(block[at : at + 4], "little")
            stated -= 1
            count += at <= len(block)
    return count


def _long_packets(data: bytes) -> Iterator[bytes]:
    """Yield the packets of an Ogg file from `LONG` bytes on. Pages whose checksum is wrong are passed over.

    Raises ValueError for too many pages.
    """
    begun: dict[bytes, list[bytes]] = {}
    at, pages = data.find(b"OggS"), 0
    while 0 <= at <= len(data) - 27:
        pages += 1
        if pages > MOST_PAGES:
            raise ValueError(f"it has more than {MOST_PAGES:,} pages")
        serial, segments = data[at + 14 : at + 18], data[at + 27 : at + 27 + data[at + 26]]
        place = at + 27 + len(segments)
        end = place + sum(segments)
        if end > len(data) or not _is_whole(data[at:end]):
            at = data.find(b"OggS", at + 4)
            continue
        before = begun.pop(serial, [])
        if not data[at + 5] & 1:  # the page does not go on with a packet
            yield from _long(before)
            before = []
        for lengths in PACKET.findall(segments):
            length = sum(lengths)
            before.append(data[place : place + length])
            place += length
            if lengths[-1] < 255:
                yield from _long(before)
                before = []
        if before:
            begun[serial] = before
        at = data.find(b"OggS", end)
    for left in begun.values():
        yield from _long(left)


def _long(parts: list[bytes]) -> Iterator[bytes]:
    if sum(map(len, parts)) >= LONG:
        yield b"".join(parts)


def _is_whole(page: bytes) -> bool:
    """True for the right checksum, which is CRC-32 with each byte's bits, and its own, in the other order."""
    raw = zlib.crc32((page[:22] + bytes(4) + page[26:]).translate(REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return struct.pack(">I", raw).translate(REVERSED) == page[22:26]
