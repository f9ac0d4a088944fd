"""Raw samples (PCM) without a header: from a file, or from a pipe while they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.errors import InputError, open_fault

__all__ = [
    "MAX_CHANNELS",
    "MAX_HZ",
    "MIN_HZ",
    "SAMPLE_FORMATS",
    "RawFormat",
    "RawSound",
    "is_raw_sound",
    "wav_beginning",
]

SAMPLE_FORMATS = {"u8": "u1", "s16le": "<i2", "s32le": "<i4", "f32le": "<f4"}
"""Formats of samples by ffmpeg's names, and numpy's types of them."""
MIN_HZ, MAX_HZ, MAX_CHANNELS = 1_000, 768_000, 64
"""Limits of the rate and of the channels of recordings that are read while they come."""
BLOCK_S = 0.5
"""Seconds of sound that are waited for before they go on."""
HEADERS = (b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3")
"""Beginnings of files that have a header."""
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
WAV_FORMATS = {(PCM, 8): "u8", (PCM, 16): "s16le", (PCM, 32): "s32le", (FLOAT, 32): "f32le"}
"""Formats of samples by a WAV file's format tag and bits."""
MOST_CHUNK_BYTES = 1 << 20
"""The longest chunk before the samples of a WAV stream."""
OPEN_ENDED_BYTES = 0x7FFFF000
"""Programs write this size or a larger one, or 0, if they do not know the number of samples yet."""


def is_raw_sound(name: str) -> bool:
    """True for a name that files of raw samples have."""
    return name.lower().endswith((".pcm", ".raw"))


@dataclass(frozen=True)
class RawFormat:
    """The format of raw samples.

    Attributes
    ----------
    rate_hz : int
        Samples a second of each channel.
    kind : str
        One of `SAMPLE_FORMATS`.
    channels : int
        Channels, whose samples alternate.
    """

    rate_hz: int
    kind: str = "s16le"
    channels: int = 1

    @property
    def width(self) -> int:
        """Bytes of a sample of all channels."""
        return np.dtype(SAMPLE_FORMATS[self.kind]).itemsize * self.channels

    def samples(self, data: bytes) -> npt.NDArray[np.float32]:
        """Return the samples float32 [n, channels] in -1..1 of whole samples' bytes."""
        found = np.frombuffer(data, SAMPLE_FORMATS[self.kind]).reshape(-1, self.channels)
        if self.kind == "f32le":
            return found.astype(np.float32)
        scale = 1 << (8 * found.dtype.itemsize - 1)
        centre = scale if self.kind == "u8" else 0
        return ((found.astype(np.float64) - centre) / scale).astype(np.float32)


@dataclass(frozen=True, eq=False)
class RawSound:
    """A recording of raw samples.

    Attributes
    ----------
    name : str
        The name of its file, or a name for errors.
    format : RawFormat
    stream : binary file or None
        The stream to read in place of the file. Its samples are taken as they come.
    nbytes : int or None
        Bytes of the samples in the stream; None for all up to its end.
    """

    name: str
    format: RawFormat
    stream: BinaryIO | None = None
    nbytes: int | None = None

    def blocks(self, on_note: Callable[[str], None]) -> Iterator[npt.NDArray[np.float32]]:
        """Yield blocks float32 [n, channels]. Raises InputError."""
        try:
            if self.stream is not None:
                yield from self._blocks(self.stream, on_note)
                return
            with open(self.name, "rb") as file:
                yield from self._blocks(file, on_note)
        except (OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{open_fault(self.name, error)}; expected raw samples") from None

    def _blocks(self, file: BinaryIO, on_note: Callable[[str], None]) -> Iterator[npt.NDArray[np.float32]]:
        own, left, is_first = self.format, self.nbytes, True
        least = max(1, int(BLOCK_S * own.rate_hz)) * own.width
        while True:
            data = file.read(least if left is None else min(least, left))  # waits for so many bytes, or the end
            left = None if left is None else left - len(data)
            if is_first and self.nbytes is None and data.startswith(HEADERS):
                raise InputError(f"{self.name} has a header with its rate and format; leave --sample-rate out")
            is_first, whole = False, len(data) // own.width * own.width
            if whole:
                yield own.samples(data[:whole])
            if whole < len(data):
                on_note(f"its last {len(data) - whole} bytes are not a whole sample of {own.width} bytes")
            if len(data) < least:
                break
        if left:
            raise InputError(f"{self.name} is cut short, {left:,} bytes of its samples are missing")


def wav_beginning(file: BinaryIO) -> tuple[bytes, RawFormat | None, int | None]:
    """Read the beginning of a WAV stream, up to its first sample.

    Returns
    -------
    read : bytes
        All that was read.
    format : RawFormat or None
        The format of the samples that follow; None if the stream is of another kind.
    nbytes : int or None
        Bytes of the samples; None if the stream does not say how many follow.
    """
    read = file.read(12)
    if len(read) < 12 or read[:4] != b"RIFF" or read[8:] != b"WAVE":
        return read, None, None
    found: RawFormat | None = None
    while True:
        head = file.read(8)
        read += head
        size = int.from_bytes(head[4:], "little")
        if len(head) < 8:
            return read, None, None
        if head[:4] == b"data":
            return read, found, None if not size or size >= OPEN_ENDED_BYTES else size
        if size > MOST_CHUNK_BYTES:
            return read, None, None
        body = file.read(size + size % 2)
        read += body
        if head[:4] == b"fmt " and len(body) >= 16:
            found = _wav_format(body)


def _wav_format(body: bytes) -> RawFormat | None:
    """Return the format that a WAV file's chunk ``fmt`` states; None if it is impossible or not in `WAV_FORMATS`."""
    numbers = np.frombuffer(body[:16], "<u2")
    tag, channels, bits = int(numbers[0]), int(numbers[1]), int(numbers[7])
    if tag == EXTENSIBLE and len(body) >= 26:
        tag = int.from_bytes(body[24:26], "little")
    kind, rate_hz = WAV_FORMATS.get((tag, bits)), int.from_bytes(body[4:8], "little")
    possible = MIN_HZ <= rate_hz <= MAX_HZ and 1 <= channels <= MAX_CHANNELS
    return RawFormat(rate_hz, kind, channels) if kind is not None and possible else None
