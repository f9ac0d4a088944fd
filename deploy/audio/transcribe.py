"""Transcription: audio files in, text out. A file is cut into windows as long as the model takes.

Each window is transcribed alone, so a word at a cut may be lost. (transformers, asked for timestamps, moves the cuts to
pauses instead.)
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.audio.features import LogMel
from tightbeam.deploy.audio.files import read_audio, windows
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.loaded_model import LoadedModel
from tightbeam.deploy.text.output import Output, join, output_of
from tightbeam.deploy.text.text_input import InputResult

__all__ = ["SpeechModel", "read_features", "transcribe", "transcribe_files"]


class SpeechModel(LoadedModel, Protocol):
    """A `LoadedModel` with its feature extractor, None for a text model."""

    log_mel: LogMel | None


def read_features(model: SpeechModel, path: str) -> Array:
    """Read an audio file as features float32 [windows, mels, frames]. Raises InputError where it cannot be read."""
    if model.log_mel is None:
        raise InputError("this is a text model; pass text or token ids instead of audio")
    log_mel = model.log_mel
    samples = read_audio(path, log_mel.sampling_rate_hz)
    return np.stack([log_mel.features(window) for window in windows(samples, log_mel.samples)])


def transcribe(model: SpeechModel, features: Array, *, batch_size: int = 8, **settings: Any) -> Output:
    """Generate for the windows of one file, ``batch_size`` at a time, and join their outputs.

    Parameters
    ----------
    model
        The runner of a speech model.
    features
        The windows' features float32 [windows, mels, frames].
    batch_size
        Windows run together.
    **settings
        Settings of ``model.generate``.
    """
    options = model.options(**settings)
    outputs = []
    for start in range(0, len(features), batch_size):
        found = model.generate_from_features(features[start : start + batch_size], **settings)
        outputs += [output_of(model, found.of(sample), options) for sample in range(len(found.sequences))]
    return join(outputs)


def transcribe_files(
    model: SpeechModel, lines: Iterable[bytes], *, batch_size: int = 8, **settings: Any
) -> Iterator[InputResult]:
    """Transcribe the audio file that each line names.

    Parameters
    ----------
    model
        The runner of a speech model.
    lines
        File names in UTF-8.
    batch_size
        Windows run together.
    **settings
        Settings of ``model.generate``.

    Yields
    ------
    InputResult
        One for each line, in order; a file that cannot be transcribed yields its error.

    Raises
    ------
    GenerationError
        A setting is wrong; raised before any line is read.
    """
    model.options(**settings)
    for number, line in enumerate(lines, start=1):
        result = InputResult(number)
        try:
            path = line.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n").decode()
            features = read_features(model, path)
            result.set_output(transcribe(model, features, batch_size=batch_size, **settings))
        except UnicodeDecodeError:
            result.error = f"{line!r} is not UTF-8; expected the name of an audio file"
        except InputError as error:
            result.error = str(error)
        yield result
