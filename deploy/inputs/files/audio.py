"""The sound of files as samples: one channel, at the model's rate, cut into windows of the model's length."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.errors import NO_NAME, InputError, first_line, open_fault
from tightbeam.deploy.inputs.files.regular import not_regular
from tightbeam.deploy.inputs.files.sound_file import SoundFile, at_rate
from tightbeam.deploy.inputs.files.sound_source import MAX_HZ, MIN_HZ, SoundSource, is_raw_sound
from tightbeam.deploy.text.token_ids import as_array

__all__ = [
    "WHOLE",
    "Clip",
    "Source",
    "as_samples",
    "audio_fault",
    "cut",
    "is_audio",
    "read_audio",
    "read_blocks",
    "read_clips",
    "windows",
]

Samples = npt.NDArray[np.float32]
Source = str | bytes | Samples | SoundSource | InputError
"""The name of an audio file, its content, samples float32 [n] at the model's rate, raw samples or a stream, or an
error in place of these."""
Clip = tuple[float, float]
"""Start and end of a clip, in seconds from the beginning of the recording."""
WHOLE: Clip = (0.0, math.inf)
LEAST_MISSING_S = 0.1
"""Seconds by which a clip must be shorter than was asked for to be noted."""
SUFFIXES = frozenset(
    f".{ending}"
    for ending in (
        "3g2 3gp aac ac3 aif aifc aiff alac amr ape asf au avi caf dss dts eac3 flac flv gsm m4a m4b m4r m4v mka "
        "mkv mov mp1 mp2 mp3 mp4 mpc mpeg mpg mts m2ts mxf nist oga ogg ogv opus ra rm snd spx sph tak ts tta voc "
        "w64 wav webm weba wma wmv wv"
    ).split()
)
"""Ends of the names of sound and video files."""
MAX_AMPLITUDE = 1e6
BLOCK = 1 << 18
"""Samples of an array that are taken together."""
NUMBERS_HZ = 400_000
"""The most samples of all channels in a second, if the length is limited: 8 channels at 48 kHz."""
EXPECTED = "expected a sound or video file, such as WAV, FLAC, MP3, OGG, M4A or WebM"
RAW = "run-model reads raw samples with --sample-rate HZ"


def is_audio(path: str) -> bool:
    """True for the name of a sound or video file, rather than of a list of them."""
    return Path(path).suffix.lower() in SUFFIXES


def read_audio(source: str | bytes, rate_hz: int) -> Samples:
    """Read a whole sound or video file. The arguments and errors are the same as in `read_blocks`.

    Returns
    -------
    float32 [n]
        Samples in -1..1, the mean of the channels.
    """
    return np.concatenate(list(read_blocks(source, rate_hz)))


def _ignored(note: str) -> None:
    """Drop a note."""


def read_blocks(
    source: str | bytes | Samples | SoundSource,
    rate_hz: int,
    *,
    most_s: float = math.inf,
    on_note: Callable[[str], None] = _ignored,
) -> Iterator[Samples]:
    """Read a whole recording block by block. The arguments, blocks and errors are the same as in `read_clips`."""
    for blocks in read_clips(source, rate_hz, (WHOLE,), most_s=most_s, on_note=on_note):
        yield from blocks


def read_clips(
    source: str | bytes | Samples | SoundSource,
    rate_hz: int,
    clips: Sequence[Clip],
    *,
    most_s: float = math.inf,
    on_note: Callable[[str], None] = _ignored,
) -> Iterator[Iterator[Samples]]:
    """Read clips of a recording block by block.

    Parameters
    ----------
    source
        The name of a sound or video file, its content, raw samples, a stream, or samples float32 [n] at the model's
        rate.
    rate_hz
        Samples a second that the model takes. A clip of another rate is resampled by itself.
    clips
        The clips, in order of time and without an overlap.
    most_s
        The most seconds of sound that are decoded. A small file may hold days of silence.
    on_note
        Receives notes about the recording, after it is read: what is missing, and which of several streams was read.

    Yields
    ------
    iterator of float32 [n]
        The blocks of a clip, which are read before the next clip: samples in -1..1, the mean of the channels.

    Raises
    ------
    InputError
        The recording cannot be read, has no samples in a clip, too many, or NaN or infinity; or a package is missing.
    """
    name = source if isinstance(source, str) else source.name if isinstance(source, SoundSource) else "the recording"
    if not isinstance(source, str | bytes | SoundSource):
        if fault := audio_fault(source):
            raise InputError(f"{name} {fault}")
        _check_length(name, len(source) / rate_hz, rate_hz, 1, most_s)
        for clip in clips:
            first, end = (round(min(time_s * rate_hz, len(source))) for time_s in clip)
            samples = source[first:end]
            _check_clip(name, clip, len(samples) / rate_hz, len(source) / rate_hz, on_note)
            yield (samples[start : start + BLOCK] for start in range(0, len(samples), BLOCK))
        return
    expected = "expected raw samples" if isinstance(source, SoundSource) and source.format is not None else EXPECTED
    if fault := _file_fault(source, name):
        raise InputError(f"{fault}; {expected}")
    with _readable(name, expected), SoundFile(source, is_limited=most_s < math.inf) as file:
        stated_s = sum(max(0.0, min(end_s, file.stated_s) - start_s) for start_s, end_s in clips)
        _check_length(name, stated_s, file.rate_hz, file.channels, most_s)
        for clip in clips:
            yield _clip_of_file(name, expected, file, clip, rate_hz, most_s, on_note)
        for note in file.notes:
            on_note(note)


def _clip_of_file(
    name: str,
    expected: str,
    file: SoundFile,
    clip: Clip,
    rate_hz: int,
    most_s: float,
    on_note: Callable[[str], None],
) -> Iterator[Samples]:
    with _readable(name, expected):
        yield from at_rate(_checked(name, file, clip, most_s, on_note), rate_hz)


@contextmanager
def _readable(name: str, expected: str) -> Iterator[None]:
    """Raise InputError in place of errors of a file that cannot be read."""
    try:
        yield
    except MemoryError:
        raise InputError(f"{name} is too long for this machine's memory; cut it into pieces") from None
    except InputError:
        raise
    except (OSError, ValueError) as error:
        fault = f"{name} cannot be read as audio ({first_line(error).rstrip('.')}); {expected}"
        raise InputError(fault, fix=RAW if is_raw_sound(name) and expected is EXPECTED else "") from None


def _check_clip(name: str, clip: Clip, seconds: float, end_s: float | None, on_note: Callable[[str], None]) -> None:
    """Note a clip that is shorter than it was to be, since the recording ends. Raises InputError for an empty one."""
    start_s, stop_s = clip
    about = f"the clip from {start_s:g}" + (f" to {stop_s:g} s" if stop_s < math.inf else " s on")
    if not seconds:
        if clip == WHOLE:
            raise InputError(f"{name} {audio_fault(np.zeros(0, np.float32))}")
        if end_s is not None and end_s <= start_s:
            raise InputError(f"{name} ends at {end_s:.2f} s, before {about}; pass clip_timestamps within it")
        raise InputError(f"{about} holds no sample of {name}; pass a longer one")
    if end_s is not None and seconds < stop_s - start_s - LEAST_MISSING_S and stop_s < math.inf:
        on_note(f"{about} ends with the recording, at {end_s:.2f} s")


def _checked(
    name: str, file: SoundFile, clip: Clip, most_s: float, on_note: Callable[[str], None]
) -> Iterator[tuple[int, Samples]]:
    """Yield the mean of the channels of each block. Raises InputError for wrong samples, no samples or too many."""
    seconds = 0.0
    for found_hz, channels in file.clip(*clip):
        _check_length(name, file.decoded_s, found_hz, channels.shape[1], most_s)
        if not len(channels):
            continue
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
            samples: Samples = channels.mean(axis=1)
        if fault := audio_fault(samples):
            raise InputError(f"{name} {fault}")
        if not MIN_HZ <= found_hz <= MAX_HZ:
            raise InputError(
                f"{name} has {found_hz} samples a second, expected {MIN_HZ:,} to {MAX_HZ:,}; correct its header"
            )
        seconds += len(samples) / found_hz
        yield found_hz, samples
    _check_clip(name, clip, seconds, file.end_s, on_note)


def _check_length(name: str, seconds: float, found_hz: int, channels: int, most_s: float) -> None:
    """Raise InputError for a recording that is too long; many channels at a high rate count as so much longer."""
    longest_s = min(most_s, most_s * NUMBERS_HZ / (found_hz * channels))
    if seconds > longest_s:
        of = f" of {channels} channels at {found_hz:,} Hz" if channels > 1 else ""
        raise InputError(f"{name} is longer than {longest_s:,.0f} seconds{of}; cut it into pieces")


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


def _file_fault(source: str | bytes | SoundSource, name: str) -> str:
    """Return what is wrong with a file before it is decoded; empty if nothing is wrong."""
    if isinstance(source, bytes):
        length = len(source)
    elif isinstance(source, SoundSource) and source.stream is not None:
        return ""
    elif not name.strip():
        return NO_NAME
    else:
        try:
            if kind := not_regular(name):
                return f"{name} is {kind}"
            with Path(name).open("rb") as file:
                length = file.seek(0, os.SEEK_END)
        except (OSError, ValueError) as error:
            return open_fault(name, error)
    return "" if length else f"{name} is empty, it has no bytes"


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
