"""Audio files whose headers do not say how long they are, or whose end is missing.

libsndfile takes the length of a file from its header, and reads no more. A program that writes to a pipe does not know
the length. Some programs leave the sizes of a WAV file at 0, which would read as no audio. An MP3 file without a count
of its frames would be read up to a length that libsndfile estimates from its first frame.
"""

from __future__ import annotations

import io
import os
import struct
from typing import BinaryIO

__all__ = ["UNKNOWN_SIZES", "OpenEnded", "lacks_last_page", "open_ended"]

UNKNOWN_SIZES = (0, 0x7FFFFFFF, 0xFFFFFFFF)
"""Sizes in the header of a WAV file that was streamed, written before the length was known."""
HEADER_BYTES = 1 << 16
"""Bytes at the beginning of a streamed WAV file among which its samples begin."""
PAGE_BYTES = 27 + 255 + 255 * 255
"""Bytes of the longest page of an OGG file."""
LAST_PAGE = 4
COUNTS = (b"Xing", b"Info", b"VBRI")
"""Marks of an MP3 file's first frame that counts the others."""
MOST_FRAMES = 1 << 30
"""A count of frames that no file reaches."""
RATES_HZ = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
KBITS_1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
KBITS_2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
"""Kilobits a second in layer III: of MPEG 1, and of MPEG 2 and 2.5."""


class OpenEnded(io.RawIOBase):
    """A file with a replaced beginning, which makes libsndfile read it up to its end.

    Parameters
    ----------
    file
        The file.
    head
        The bytes that replace its first ones.
    skipped
        The number of bytes that are replaced.
    """

    def __init__(self, file: BinaryIO, head: bytes, skipped: int) -> None:
        self._file, self._head, self._skipped = file, head, skipped
        self._length = file.seek(0, os.SEEK_END) - skipped + len(head)
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._length}[whence]
        return self._place

    def read(self, size: int = -1) -> bytes:
        if self._place < len(self._head):
            found = self._head[self._place :][: None if size < 0 else size]
        else:
            self._file.seek(self._place - len(self._head) + self._skipped)
            found = self._file.read(size)
        self._place += len(found)
        return found

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        found = b""
        while len(found) < len(buffer) and (more := self.read(len(buffer) - len(found))):
            found += more
        buffer[: len(found)] = found
        return len(found)


def open_ended(file: BinaryIO) -> OpenEnded | None:
    """Rewrite the header of a file that does not state its length. Returns None for other files."""
    file.seek(0)
    head = file.read(HEADER_BYTES)
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return _unclosed_wav(file, head)
    start = 0
    if head[:3] == b"ID3" and len(head) >= 10:  # a title, whose size is four times 7 bits
        start = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=True))
    file.seek(start)
    return _uncounted_mp3(file, file.read(HEADER_BYTES), start)


def _unclosed_wav(file: BinaryIO, head: bytes) -> OpenEnded | None:
    """Rewrite the header of a WAV file that states a size of 0 for its samples; None for another file."""
    riff_size = int.from_bytes(head[4:8], "little")
    place = 12
    while place + 8 <= len(head):
        size = int.from_bytes(head[place + 4 : place + 8], "little")
        if head[place : place + 4] == b"data":
            end = place + 8
            if size == 0 and (riff_size in UNKNOWN_SIZES or riff_size + 8 <= end):
                unknown = b"\xff" * 4
                return OpenEnded(file, head[:4] + unknown + head[8 : place + 4] + unknown, end)
            return None
        place += 8 + size + size % 2
    return None


def _uncounted_mp3(file: BinaryIO, data: bytes, start: int) -> OpenEnded | None:
    """Rewrite the first frame, at ``start``, of an MP3 file that has no count of frames; None for another file."""
    length = _frame_bytes(data)
    if not length or _frame_bytes(data[length:]) == 0 or any(mark in data[:length] for mark in COUNTS):
        return None
    header = bytes([data[0], data[1] | 1, *data[2:4]])  # without a checksum
    mpeg_1, mono = header[1] & 8, header[3] >> 6 == 3
    sides = 32 - 15 * mono if mpeg_1 else 17 - 8 * mono
    counting = header + bytes(sides) + struct.pack(">4sII", b"Xing", 1, MOST_FRAMES)
    if len(counting) > length:
        return None
    return OpenEnded(file, counting.ljust(length, b"\0"), start)


def _frame_bytes(data: bytes) -> int:
    """Return the length of the MP3 frame that ``data`` begins with; 0 if it begins with no frame of a known length."""
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE6 != 0xE2:  # synchronisation and layer III
        return 0
    version, kbits, rate = data[1] >> 3 & 3, data[2] >> 4, data[2] >> 2 & 3
    if version not in RATES_HZ or kbits == 15 or rate == 3:
        return 0
    by_rate, table = (144_000, KBITS_1) if version == 3 else (72_000, KBITS_2)
    return by_rate * table[kbits] // RATES_HZ[version][rate] + (data[2] >> 1 & 1) if kbits else 0


def lacks_last_page(file: BinaryIO) -> bool:
    """True for an OGG file that does not end with a page marked as the last."""
    length = file.seek(0, os.SEEK_END)
    file.seek(max(0, length - PAGE_BYTES))
    tail = file.read()
    page = tail[max(0, tail.rfind(b"OggS")) :]
    if len(page) < 27 or not page[5] & LAST_PAGE:
        return True
    sizes = page[27 : 27 + page[26]]
    return len(sizes) < page[26] or len(page) < 27 + len(sizes) + sum(sizes)
