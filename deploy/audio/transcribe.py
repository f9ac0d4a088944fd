"""Recordings in, text out: each is cut in windows as long as the model takes at once, one after the other.

The windows of a recording are heard apart: a word that a cut goes through may be lost (transformers, asked for
timestamps, moves the cuts to pauses instead).
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

__all__ = ["read_features", "transcribe", "transcribe_files"]


class SpeechModel(LoadedModel, Protocol):
    """A `LoadedModel` with its feature extractor, None for a text model."""

    log_mel: LogMel | None


def read_features(runner: SpeechModel, path: str) -> Array:
    """Features float32 [windows, mels, frames] of a sound file. Raises InputError for one that cannot be heard."""
    if runner.log_mel is None:
        raise InputError("this is a text model; pass text or token ids instead of audio")
    sound = read_audio(path, runner.log_mel.sampling_rate_hz)
    return np.stack([runner.log_mel.features(window) for window in windows(sound, runner.log_mel.samples)])


def transcribe(runner: SpeechModel, features: Array, *, batch_size: int = 8, **settings: Any) -> Output:
    """Generate for the windows of one recording, and join what they give."""
    options = runner.options(**settings)
    windows = []
    for start in range(0, len(features), batch_size):
        found = runner.generate_from_features(features[start : start + batch_size], **settings)
        windows += [output_of(runner, found.of(sample), options) for sample in range(len(found.sequences))]
    return join(windows)


def transcribe_files(
    runner: SpeechModel, lines: Iterable[bytes], *, batch_size: int = 8, **settings: Any
) -> Iterator[InputResult]:
    """Transcribe the sound file that each line names, in order. One that cannot be heard yields its error.

    Raises GenerationError for the settings, before any line is read.
    """
    runner.options(**settings)
    for number, line in enumerate(lines, start=1):
        result = InputResult(number)
        try:
            path = line.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n").decode()
            result.take(transcribe(runner, read_features(runner, path), batch_size=batch_size, **settings))
        except UnicodeDecodeError:
            result.error = "not UTF-8; expected the name of a sound file"
        except InputError as error:
            result.error = str(error)
        yield result
