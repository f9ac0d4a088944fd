"""An audio file that libsndfile reads once, from its beginning to its end."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs.containers import lacks_last_page, open_ended

__all__ = ["INSTALL", "SoundFile"]

Channels = npt.NDArray[np.float32]
INSTALL = "pip install 'tightbeam[audio]'"
UNKNOWN_FRAMES = (1 << 63) - 1
"""Length that a streamed FLAC file states."""
TRUSTED = ("WAV", "WAVEX", "FLAC", "OGG")
"""Formats whose stated length is right; an MP3 file may state a wrong one."""
LEAST_MISSING_S = 0.25
"""Seconds by which an MP3 file must be shorter than it states: some encoders count their delay."""


def _forward(source: object) -> Any:
    """Open a file and report it as not seekable: libsndfile loses its position in streamed FLAC."""
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: without its C library
        raise InputError(f"reading audio needs the package soundfile, which is not installed; {INSTALL}") from None

    class ForwardFile(soundfile.SoundFile):  # type: ignore[misc]  # soundfile has no types
        def seekable(self) -> bool:
            return False

    return ForwardFile(source)


class SoundFile:
    """An audio file that is read once; leaving the context closes it.

    Parameters
    ----------
    source : str or bytes
        Name or content of the file.

    Attributes
    ----------
    rate_hz : int
        Samples a second.
    channels : int
        The number of channels.
    stated_s : float
        Seconds of sound that the header states; 0 if it states no length, or may be wrong.

    Raises
    ------
    InputError
        The package soundfile is missing.
    OSError, RuntimeError
        The file cannot be opened, or is not audio.
    """

    def __init__(self, source: str | bytes) -> None:
        with ExitStack() as files:
            self._content: BinaryIO = (
                io.BytesIO(source) if isinstance(source, bytes) else files.enter_context(open(source, "rb"))
            )
            self._ended = open_ended(self._content)
            self._content.seek(0)
            opened: object = self._ended or self._content
            if isinstance(source, str) and self._ended is None:
                opened = source if sys.platform == "win32" else os.fsencode(source)  # a name may not be UTF-8
            self._file = files.enter_context(_forward(opened))
            self._files = files.pop_all()
        self._done, self._is_broken = 0, False
        self.rate_hz, self.channels = int(self._file.samplerate), int(self._file.channels)
        is_stated = self._file.format in TRUSTED and self._file.frames != UNKNOWN_FRAMES
        self.stated_s = self._file.frames / self.rate_hz if is_stated else 0.0

    def __enter__(self) -> SoundFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def blocks(self, length: int) -> Iterator[Channels]:
        """Yield blocks float32 [n, channels] of up to ``length`` samples of each channel.

        Raises RuntimeError if the content is broken. An MP3 file that does not count its frames may hold something
        else behind them.
        """
        while not self._is_broken:
            block = np.empty((length, self.channels), np.float32)
            if self._ended is not None:
                block.fill(np.nan)  # stays in the samples that are not read before an error
            try:
                block = self._file.read(out=block)
            except RuntimeError:
                if self._ended is None:
                    raise
                block, self._is_broken = block[: np.isfinite(block[:, 0]).sum()], True
                if not self._done + len(block):
                    raise
            if not len(block):
                return
            self._done += len(block)
            yield block

    def missing(self) -> str:
        """Return what is missing at the end of a file that was read; empty if nothing is known to be missing."""
        done_s = self._done / self.rate_hz
        if self._is_broken:
            return f"it holds no sound that can be read behind {done_s:.1f} s"
        if self._file.format == "OGG" and lacks_last_page(self._content):
            return f"its end is missing: the file breaks off after {done_s:.1f} s"
        stated_s = self._file.frames / self.rate_hz
        if self._file.format == "MP3" and self._ended is None and done_s < stated_s - LEAST_MISSING_S:
            return f"its end is missing: the file has {done_s:.1f} s of {stated_s:.1f} s"
        return ""
