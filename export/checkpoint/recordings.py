"""Recordings for calibration: an audio file, or those in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.inputs.files.audio import cut, is_audio, read_blocks
from tightbeam.export.errors import ExportError

__all__ = ["MAX_RECORDINGS", "PCM_STEPS", "find_recordings", "read_recording"]

MAX_RECORDINGS = 8
"""Recordings beyond these are not read: a window gives thousands of rows, and torch takes seconds for each."""
PCM_STEPS = 1 << 15
"""Steps of a 16-bit sample up to 1.0."""


def find_recordings(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Find the recordings that a path names.

    Parameters
    ----------
    path
        An audio file, or a folder of audio files.

    Returns
    -------
    tuple of str
        The file, or the first ``MAX_RECORDINGS`` of the folder by name.

    Raises
    ------
    ExportError
        There is no recording.
    """
    place = Path(path)
    names = sorted(str(each) for each in place.iterdir() if is_audio(each.name)) if place.is_dir() else [str(place)]
    if not names or not Path(names[0]).is_file() or not is_audio(names[0]):
        raise ExportError(
            f"calibration: {os.fspath(path)} is not a recording or a folder of recordings, which a speech model is "
            "measured on; give audio files, or leave --calibration out for synthetic audio"
        )
    return tuple(names[:MAX_RECORDINGS])


def read_recording(path: str, rate_hz: int, longest: int) -> npt.NDArray[np.int16]:
    """Read the beginning of a recording as 16-bit samples, so that it can be written to a file without rounding.

    Parameters
    ----------
    path
        An audio file.
    rate_hz
        Samples a second; a file of another rate is resampled.
    longest
        The most samples.

    Raises
    ------
    ExportError
        The file cannot be read as audio.
    """
    try:
        samples = next(cut(read_blocks(path, rate_hz), longest))
    except InputError as error:
        raise ExportError(f"calibration: {error}") from None
    return np.clip(np.round(samples * PCM_STEPS), -PCM_STEPS, PCM_STEPS - 1).astype(np.int16)
