"""Audio files as samples: one channel, at the model's rate, cut into windows of the length that the model takes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.errors import InputError, first_line

__all__ = ["audio_fault", "is_audio", "read_audio", "read_blocks", "resampled", "windows"]

Samples = npt.NDArray[np.float32]
SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
INSTALL = "pip install 'tightbeam[audio]'"
MAX_AMPLITUDE = 1e6
BLOCK = 1 << 18
"""Samples of each channel that are read together."""
REACH = 10
"""Half the length of the resampling filter, in samples of the lower rate."""
MIN_HZ, MAX_HZ = 1_000, 768_000
UNKNOWN_SIZES = (0, 0x7FFFFFFF, 0xFFFFFFFF)
"""Sizes in the header of a WAV file that was streamed, written before the length was known."""


def is_audio(path: str) -> bool:
    """True for the name of an audio file, rather than of a list of them."""
    return Path(path).suffix.lower() in SUFFIXES


def read_audio(path: str, rate_hz: int) -> Samples:
    """Read an audio file whole; arguments and errors as of `read_blocks`.

    Returns
    -------
    float32 [n]
        Samples in -1..1, the mean of the channels.
    """
    return np.concatenate(list(read_blocks(path, rate_hz)))


def read_blocks(path: str, rate_hz: int) -> Iterator[Samples]:
    """Read an audio file block by block.

    Parameters
    ----------
    path
        A WAV, FLAC, OGG or MP3 file.
    rate_hz
        Samples a second that the model takes; a file of another rate is resampled.

    Yields
    ------
    float32 [n]
        Samples in -1..1, the mean of the channels.

    Raises
    ------
    InputError
        The file cannot be read, holds no samples, or holds NaN or infinity; or a package is missing.
    """
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: without its C library
        raise InputError(f"reading audio needs the package soundfile, which is not installed; {INSTALL}") from None
    if fault := _file_fault(path):
        raise InputError(f"{fault}; expected a WAV, FLAC, OGG or MP3 file")
    try:
        with soundfile.SoundFile(path) as file:
            found_hz = int(file.samplerate)
            blocks = _checked(path, file.blocks(BLOCK, dtype="float32", always_2d=True), found_hz)
            yield from blocks if found_hz == rate_hz else resampled(blocks, found_hz, rate_hz)
    except MemoryError:
        raise InputError(f"{path} is too long for this machine's memory; cut it into pieces") from None
    except InputError:
        raise
    except (RuntimeError, OSError, TypeError, ValueError) as error:
        reason = getattr(error, "error_string", "") or first_line(error)  # without the name, of libsndfile
        if "does not exist" in reason:  # libsndfile's word for an MP3 file without a frame; `_file_fault` has opened it
            reason = "no frame of audio was found"
        raise InputError(
            f"{path} cannot be read as audio ({reason.rstrip('.')}); expected a WAV, FLAC, OGG or MP3 file"
        ) from None


def _checked(path: str, blocks: Iterable[npt.NDArray[Any]], found_hz: int) -> Iterator[Samples]:
    """The mean of the channels of each block. Raises InputError for samples that are none."""
    empty = True
    for channels in blocks:
        samples: Samples = channels.mean(axis=1)
        if fault := audio_fault(samples):
            raise InputError(f"{path} {fault}")
        if empty and not MIN_HZ <= found_hz <= MAX_HZ:
            raise InputError(
                f"{path} has {found_hz} samples a second, expected {MIN_HZ:,} to {MAX_HZ:,}; correct its header"
            )
        empty = False
        yield samples
    if empty:
        raise InputError(f"{path} {audio_fault(np.zeros(0, np.float32))}")


def audio_fault(samples: Samples) -> str:
    """Name what is wrong with samples float32 [n], and the fix; empty where nothing is."""
    if not len(samples):
        return "is empty; expected at least one sample"
    if not np.isfinite(samples).all():
        return "holds NaN or infinity; expected finite samples; record or convert it again"
    if (peak := float(np.abs(samples).max())) > MAX_AMPLITUDE:
        return f"holds samples of up to {peak:.1e}; expected -1 to 1, as audio files have them"
    return ""


def _file_fault(path: str) -> str:
    """Name what is wrong with a file before it is decoded; empty where nothing is."""
    if not path.strip():
        return "no file is named"
    try:
        if Path(path).is_dir():
            return f"{path} is a folder"
        with Path(path).open("rb") as file:
            header = file.read(12)
            length = file.seek(0, os.SEEK_END)
    except FileNotFoundError:
        return f"there is no file {path}"
    except (OSError, ValueError) as error:
        return f"{path} cannot be opened ({getattr(error, 'strerror', None) or error})"
    if not length:
        return f"{path} is empty, it has no bytes"
    size = int.from_bytes(header[4:8], "little")
    if header[:4] == b"RIFF" and header[8:] == b"WAVE" and size not in UNKNOWN_SIZES and size + 8 > length + 1:
        return f"{path} is cut short, it has {length:,} bytes of {size + 8:,}"
    return ""


def resampled(blocks: Iterable[Samples], found_hz: int, rate_hz: int) -> Iterator[Samples]:
    """Resample with scipy's polyphase filter, whose default window keeps the frequencies that both rates have.

    The blocks of the result are together what the filter makes of the whole recording: each is filtered with the
    samples on both sides that the filter reaches. Raises InputError without scipy.
    """
    try:
        from scipy.signal import resample_poly
    except ImportError:
        raise InputError(
            f"the audio has {found_hz} samples a second, the model takes {rate_hz}, and resampling needs the package "
            f"scipy; {INSTALL}, or convert the file"
        ) from None
    common = math.gcd(found_hz, rate_hz)
    up, down = rate_hz // common, found_hz // common
    reach = (REACH * max(up, down) // up // down + 2) * down  # samples on each side, whole periods of the two rates
    kept, before = np.zeros(0, np.float32), 0  # samples that are not done, behind `before` that are
    for block in blocks:
        kept = np.concatenate([kept, block])
        done = (len(kept) - before - reach) // down * down
        if done >= reach:
            found = resample_poly(kept[: before + done + reach], up, down)
            yield found[before * up // down : (before + done) * up // down].astype(np.float32)
            left = min(reach, before + done)
            kept, before = kept[before + done - left :], left
    if len(kept) > before:
        yield resample_poly(kept, up, down)[before * up // down :].astype(np.float32)


def windows(samples: Samples, length: int) -> list[Samples]:
    """Cut samples into consecutive windows of ``length`` samples; the last one may be shorter."""
    return [samples[start : start + length] for start in range(0, len(samples), length)]
