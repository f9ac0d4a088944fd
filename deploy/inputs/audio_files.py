"""Audio files as samples: one channel, at the model's rate, cut into windows of the length that the model takes."""

from __future__ import annotations

import io
import math
import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.errors import NO_NAME, InputError, first_line, open_fault
from tightbeam.deploy.inputs.containers import UNKNOWN_SIZES
from tightbeam.deploy.inputs.raw_sound import MAX_HZ, MIN_HZ, RawSound, is_raw_sound
from tightbeam.deploy.inputs.regular_file import not_regular
from tightbeam.deploy.inputs.sound_file import INSTALL, SoundFile
from tightbeam.deploy.text.token_ids import as_array

__all__ = [
    "Source",
    "as_samples",
    "audio_blocks",
    "audio_fault",
    "cut",
    "is_audio",
    "read_audio",
    "read_blocks",
    "resampled",
    "windows",
]

Samples = npt.NDArray[np.float32]
Source = str | bytes | Samples | RawSound | InputError
"""The name of an audio file, its content, samples float32 [n] at the model's rate, raw samples, or an error in place of
these."""
SUFFIXES = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3")
CONVERTED = (".m4a", ".mp4", ".aac", ".webm", ".wma")
"""Ends of names of sound that has to be converted first."""
MAX_AMPLITUDE = 1e6
BLOCK, BLOCK_CHANNELS = 1 << 18, 8
"""Samples of each channel that are read together from a file of up to ``BLOCK_CHANNELS`` channels."""
NUMBERS_HZ = 400_000
"""The most samples of all channels in a second, if the length is limited: 8 channels at 48 kHz."""
REACH = 10
"""Half the length of the resampling filter, in samples of the lower rate."""
MOST_PHASES = 100_000
"""Bound on both rates, divided by their common factor: the resampling filter has 20 times as many numbers."""
BEGINNINGS = (b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3")
"""Beginnings of a file's content: of WAV (two), FLAC, OGG, and MP3 with a title."""
EXPECTED = "expected a WAV, FLAC, OGG or MP3 file"
RAW = "run-model reads raw samples with --sample-rate HZ"
OTHERS: tuple[tuple[int, bytes, str], ...] = (
    (4, b"ftyp", "an MPEG-4 file (M4A, MP4)"),
    (0, b"\x1aE\xdf\xa3", "a WebM or Matroska file"),
    (0, b"\xff\xf1", "an AAC file"),
    (0, b"\xff\xf9", "an AAC file"),
    (0, b"0&\xb2u\x8ef\xcf\x11", "a WMA file"),
)
"""Formats that have to be converted first: the place and bytes by which they are known, and their names."""


def is_audio(path: str) -> bool:
    """True for the name of an audio file, rather than of a list of them."""
    return Path(path).suffix.lower() in SUFFIXES + CONVERTED


def read_audio(source: str | bytes, rate_hz: int) -> Samples:
    """Read a whole audio file. The arguments and errors are the same as in `read_blocks`.

    Returns
    -------
    float32 [n]
        Samples in -1..1, the mean of the channels.
    """
    return np.concatenate(list(read_blocks(source, rate_hz)))


def _ignored(note: str) -> None:
    """Drop a note."""


def read_blocks(
    source: str | bytes, rate_hz: int, *, most_s: float = math.inf, on_note: Callable[[str], None] = _ignored
) -> Iterator[Samples]:
    """Read an audio file block by block.

    Parameters
    ----------
    source
        The name of a WAV, FLAC, OGG or MP3 file, or its content.
    rate_hz
        Samples a second that the model takes. A file of another rate is resampled.
    most_s
        The most seconds of sound. A small file may hold days of silence.
    on_note
        Receives a note about what is missing at the end of an OGG or MP3 file, after the rest is read.

    Yields
    ------
    float32 [n]
        Samples in -1..1, the mean of the channels.

    Raises
    ------
    InputError
        The file cannot be read, holds no samples, too many, or NaN or infinity; or a package is missing.
    """
    name = source if isinstance(source, str) else "the recording"
    if fault := _file_fault(source, name):
        raise InputError(fault if "ffmpeg" in fault else f"{fault}; {EXPECTED}")
    try:
        with SoundFile(source) as file:
            found_hz, channels = file.rate_hz, file.channels
            longest_s = min(most_s, most_s * NUMBERS_HZ / (found_hz * channels))
            if file.stated_s > longest_s:
                raise InputError(_too_long(name, longest_s, channels, found_hz))
            read = file.blocks(max(1, BLOCK * BLOCK_CHANNELS // max(BLOCK_CHANNELS, channels)))
            blocks = _checked(name, read, found_hz, longest_s)
            yield from blocks if found_hz == rate_hz else resampled(blocks, found_hz, rate_hz)
            if missing := file.missing():
                on_note(missing)
    except MemoryError:
        raise InputError(f"{name} is too long for this machine's memory; cut it into pieces") from None
    except InputError:
        raise
    except (RuntimeError, OSError, TypeError, ValueError) as error:
        reason = getattr(error, "error_string", "") or first_line(error)  # without the name, of libsndfile
        if "does not exist" in reason:  # libsndfile's word for an MP3 file without a frame; `_file_fault` has opened it
            reason = "no frame of audio was found"
        fault = f"{name} cannot be read as audio ({reason.rstrip('.')}); {EXPECTED}"
        raise InputError(fault, fix=RAW if is_raw_sound(name) else "") from None


def audio_blocks(
    source: str | bytes | Samples | RawSound,
    rate_hz: int,
    *,
    most_s: float = math.inf,
    on_note: Callable[[str], None] = _ignored,
) -> Iterator[Samples]:
    """Yield the blocks of an audio file, as `read_blocks` does, of samples float32 [n] at the model's rate, or of raw
    samples."""
    if isinstance(source, RawSound):
        found_hz = source.format.rate_hz
        blocks = _checked(source.name, source.blocks(on_note), found_hz, most_s)
        yield from blocks if found_hz == rate_hz else resampled(blocks, found_hz, rate_hz)
    elif isinstance(source, str | bytes):
        yield from read_blocks(source, rate_hz, most_s=most_s, on_note=on_note)
    elif fault := audio_fault(source):
        raise InputError(f"the recording {fault}")
    elif len(source) > most_s * rate_hz:
        raise InputError(_too_long("the recording", most_s))
    else:
        yield from (source[start : start + BLOCK] for start in range(0, len(source), BLOCK))


def _checked(name: str, blocks: Iterable[npt.NDArray[Any]], found_hz: int, most_s: float) -> Iterator[Samples]:
    """Yield the mean of the channels of each block. Raises InputError for wrong samples, no samples or too many."""
    count = 0
    for channels in blocks:
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
            samples: Samples = channels.mean(axis=1)
        if fault := audio_fault(samples):
            raise InputError(f"{name} {fault}")
        if not count and not MIN_HZ <= found_hz <= MAX_HZ:
            raise InputError(
                f"{name} has {found_hz} samples a second, expected {MIN_HZ:,} to {MAX_HZ:,}; correct its header"
            )
        count += len(samples)
        if count > most_s * found_hz:
            raise InputError(_too_long(name, most_s, channels.shape[1], found_hz))
        yield samples
    if not count:
        raise InputError(f"{name} {audio_fault(np.zeros(0, np.float32))}")


def _too_long(name: str, most_s: float, channels: int = 1, found_hz: int = 0) -> str:
    """Return the error of a recording of more than ``most_s`` seconds."""
    of = f" of {channels} channels at {found_hz:,} Hz" if channels > 1 else ""
    return f"{name} is longer than {most_s:,.0f} seconds{of}; cut it into pieces"


def as_samples(name: str, value: Any) -> Samples:
    """Return a caller's recording as samples float32 [n]. Raises InputError, which calls the recording ``name``."""
    samples = as_array(name, value)
    if samples.ndim == 1 and samples.dtype.kind == "f":
        with np.errstate(over="ignore"):  # infinity is found when it is read
            return samples.astype(np.float32)
    kind = type(value).__name__
    if samples.dtype != np.object_:
        kind = f"{samples.dtype} {list(samples.shape)}"
    raise InputError(
        f"{name} is {kind}, expected the name of an audio file, or an array of samples, one channel of floats in -1..1 "
        "(divide int16 samples by 32768); pass that"
    )


def audio_fault(samples: Samples) -> str:
    """Return what is wrong with samples float32 [n], and the fix; empty if nothing is wrong."""
    if not len(samples):
        return "is empty; expected at least one sample"
    if not np.isfinite(samples).all():
        return "holds NaN or infinity; expected finite samples; record or convert it again"
    if (peak := float(np.abs(samples).max())) > MAX_AMPLITUDE:
        return f"holds samples of up to {peak:.1e}; expected -1 to 1, as audio files have them"
    return ""


def _file_fault(source: str | bytes, name: str) -> str:
    """Return what is wrong with a file before it is decoded; empty if nothing is wrong."""
    if isinstance(source, str) and not source.strip():
        return NO_NAME
    try:
        if isinstance(source, str) and (kind := not_regular(source)):
            return f"{name} is {kind}"
        with io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as file:
            header = file.read(12)
            length = file.seek(0, os.SEEK_END)
    except (OSError, ValueError) as error:
        return open_fault(name, error)
    if not length:
        return f"{name} is empty, it has no bytes"
    for place, begin, kind in OTHERS:
        if header.startswith(begin, place):
            path = Path(source if isinstance(source, str) and is_audio(source) else "FILE")
            made = path.with_suffix(".wav" if path.suffix.lower() != ".wav" else ".flac")
            command = f"ffmpeg -i {shlex.quote(str(path))} -ac 1 {shlex.quote(str(made))}"
            return f"{name} is {kind}, which is not read; convert it: {command}"
    synchronised = header[:1] == b"\xff" and header[1:2] >= b"\xe0"  # a frame of MP3
    if isinstance(source, bytes) and not (synchronised or header.startswith(BEGINNINGS)):
        return f"{name} cannot be read as audio"  # other formats of libsndfile are for files that somebody chose here
    size = int.from_bytes(header[4:8], "little")
    if header[:4] == b"RIFF" and header[8:] == b"WAVE" and size not in UNKNOWN_SIZES and size + 8 > length + 1:
        return f"{name} is cut short, it has {length:,} bytes of {size + 8:,}"
    return ""


def resampled(blocks: Iterable[Samples], found_hz: int, rate_hz: int) -> Iterator[Samples]:
    """Resample with scipy's polyphase filter, whose default window keeps the frequencies that both rates have.

    The blocks together equal the filtered whole recording, since each is filtered with the samples on both sides that
    the filter reaches. Raises InputError without scipy, and if both rates have no large common factor.
    """
    try:
        from scipy.signal import firwin, resample_poly
    except ImportError:
        raise InputError(
            f"the audio has {found_hz} samples a second, the model takes {rate_hz}, and resampling needs the package "
            f"scipy; {INSTALL}, or convert the file"
        ) from None
    common = math.gcd(found_hz, rate_hz)
    up, down = rate_hz // common, found_hz // common
    blocks = iter(blocks)
    first = next(blocks, None)  # whose reader refuses a rate that no sound has
    if first is None:
        return
    if (phases := max(up, down)) > MOST_PHASES:
        raise InputError(
            f"the audio has {found_hz} samples a second, which is far above the model's {rate_hz} and shares no large "
            f"factor with it; resample it: ffmpeg -i FILE -ar {rate_hz} FILE.wav"
        )
    taps = firwin(2 * REACH * phases + 1, 1 / phases, window=("kaiser", 5.0)).astype(np.float32)  # scipy's default
    reach = (REACH * max(up, down) // up // down + 2) * down  # samples on each side, whole periods of the two rates
    held, before = np.zeros(0, np.float32), 0  # the first `before` of these samples are done
    for block in chain([first], blocks):
        held = np.concatenate([held, block])
        done = (len(held) - before - reach) // down * down
        if done >= reach:
            found = resample_poly(held[: before + done + reach], up, down, window=taps)
            yield found[before * up // down : (before + done) * up // down].astype(np.float32)
            left = min(reach, before + done)
            held, before = held[before + done - left :], left
    if len(held) > before:
        yield resample_poly(held, up, down, window=taps)[before * up // down :].astype(np.float32)


def cut(blocks: Iterable[Samples], length: int) -> Iterator[Samples]:
    """Cut consecutive blocks into windows of ``length`` samples; the last one may be shorter."""
    held = np.zeros(0, np.float32)
    for block in blocks:
        held = np.concatenate([held, block]) if len(held) else block
        while len(held) >= length:
            yield held[:length]
            held = held[length:]
    if len(held):
        yield held


def windows(samples: Samples, length: int) -> list[Samples]:
    """Cut samples into consecutive windows of ``length`` samples; the last one may be shorter."""
    return list(cut([samples], length))
