"""Sound files -> samples: one channel, at the model's rate, in windows of the length that it takes."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.errors import InputError

__all__ = ["audio_fault", "is_audio", "read_audio", "windows"]

Sound = npt.NDArray[np.float32]
SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
INSTALL = "pip install 'tightbeam[audio]'"
LOUDEST = 1e6
LOWEST_HZ, HIGHEST_HZ = 1_000, 768_000
UNKNOWN_SIZES = (0, 0x7FFFFFFF, 0xFFFFFFFF)
"""What programs write into a WAV header that do not know yet how long the sound will be."""


def is_audio(path: str) -> bool:
    """Whether a name is that of a sound file, rather than of a list of them."""
    return Path(path).suffix.lower() in SUFFIXES


def read_audio(path: str, rate_hz: int) -> Sound:
    """The samples float32 [n] of a sound file, in -1..1, at ``rate_hz``; several channels are averaged.

    Raises InputError for a file that cannot be read, holds no sound or no numbers, and where a package is missing.
    """
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: without its C library
        raise InputError(f"reading sound needs the package soundfile, which is not there; {INSTALL}") from None
    if fault := _file_fault(path):
        raise InputError(f"{fault}; expected a WAV or FLAC file")
    try:
        channels, found_hz = soundfile.read(path, dtype="float32", always_2d=True)  # [n, channels]
    except MemoryError:
        raise InputError(f"{path} is too long for this machine's memory; cut it into pieces") from None
    except (RuntimeError, OSError, TypeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{path} cannot be read as sound ({reason}); expected a WAV or FLAC file") from None
    sound: Sound = channels.mean(axis=1)
    if fault := audio_fault(sound):
        raise InputError(f"{path} {fault}")
    if not LOWEST_HZ <= found_hz <= HIGHEST_HZ:
        raise InputError(
            f"{path} has {found_hz} samples a second, expected {LOWEST_HZ:,} to {HIGHEST_HZ:,}; mend its header"
        )
    return sound if found_hz == rate_hz else _resampled(sound, int(found_hz), rate_hz)


def audio_fault(sound: Sound) -> str:
    """What is wrong with the samples float32 [n] of a sound; empty where nothing is."""
    if not len(sound):
        return "holds no sound; expected at least one sample"
    if not np.isfinite(sound).all():
        return "holds samples that are no numbers; make it again"
    if (loudest := float(np.abs(sound).max())) > LOUDEST:
        return f"holds samples of up to {loudest:.1e}; expected -1 to 1, as sound files have them"
    return ""


def _file_fault(path: str) -> str:
    """What is wrong with a file before anything decodes it; empty where nothing is."""
    if not path.strip():
        return "no file is named"
    try:
        if Path(path).is_dir():
            return f"{path} is a folder"
        with Path(path).open("rb") as file:
            header = file.read(12)
            there = file.seek(0, os.SEEK_END)
    except FileNotFoundError:
        return f"there is no file {path}"
    except (OSError, ValueError) as error:
        return f"{path} cannot be opened ({getattr(error, 'strerror', None) or error})"
    size = int.from_bytes(header[4:8], "little")
    if header[:4] == b"RIFF" and header[8:] == b"WAVE" and size not in UNKNOWN_SIZES and size + 8 > there + 1:
        return f"{path} is cut short, it has {there:,} bytes of {size + 8:,}"
    return ""


def _resampled(sound: Sound, found_hz: int, rate_hz: int) -> Sound:
    """By scipy's polyphase filter, whose default window keeps what both rates can hold."""
    try:
        from scipy.signal import resample_poly
    except ImportError:
        raise InputError(
            f"the audio has {found_hz} samples a second, the model takes {rate_hz}, and resampling needs the package "
            f"scipy; {INSTALL}, or convert the file"
        ) from None
    common = math.gcd(found_hz, rate_hz)
    resampled: npt.NDArray[Any] = resample_poly(sound, rate_hz // common, found_hz // common)
    return resampled.astype(np.float32)


def windows(sound: Sound, samples: int) -> list[Sound]:
    """One after the other, each of ``samples`` samples but the last."""
    return [sound[start : start + samples] for start in range(0, len(sound), samples)]
