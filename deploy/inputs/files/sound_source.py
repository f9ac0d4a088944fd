"""Sound that is more than a file with a header: raw samples (PCM), and streams that are read while they come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

__all__ = ["MAX_CHANNELS", "MAX_HZ", "MIN_HZ", "SAMPLE_FORMATS", "RawFormat", "SoundSource", "is_raw_sound"]

SAMPLE_FORMATS = {"u8": 1, "s16le": 2, "s32le": 4, "f32le": 4}
"""Bytes of a sample by the name of its format, which is FFmpeg's."""
MIN_HZ, MAX_HZ, MAX_CHANNELS = 1_000, 768_000, 64
"""Limits of the rate, and of the channels."""


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
        return SAMPLE_FORMATS[self.kind] * self.channels


@dataclass(frozen=True, eq=False)
class SoundSource:
    """A recording of raw samples, or one that is read while it comes.

    Attributes
    ----------
    name : str
        The name of its file, or a name for errors.
    format : RawFormat or None
        The format of raw samples; None for a file with a header.
    stream : binary file or None
        The stream to read in place of the file. Its sound is taken as it comes.
    begun : bytes
        What was read of the stream already.
    """

    name: str
    format: RawFormat | None = None
    stream: BinaryIO | None = None
    begun: bytes = b""
