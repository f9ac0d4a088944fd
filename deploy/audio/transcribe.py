"""Transcription: audio files in, text out. A file is cut into windows as long as the model takes.

Each window is transcribed alone, so a word at a cut may be lost. (transformers, asked for timestamps, moves the cuts to
pauses instead.)
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Protocol

import numpy as np

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.audio.features import LogMel
from tightbeam.deploy.audio.files import read_audio, windows
from tightbeam.deploy.errors import InputError
from tightbeam.deploy.loaded_model import LoadedModel
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.text.input_result import InputResult
from tightbeam.deploy.text.output import Output, join, output_of
from tightbeam.deploy.text.run_inputs import OpenInput, run_inputs

__all__ = ["SpeechModel", "named_files", "read_features", "transcribe", "transcribe_files"]

FILES_AHEAD = 2
"""Files that are read and wait, since the features of an hour are 115 MB."""


class SpeechModel(LoadedModel, Protocol):
    """A `LoadedModel` with its feature extractor, None for a text model."""

    log_mel: LogMel | None

    def sample_of_features(self, number: int, features: Array, settings: Mapping[str, Any]) -> Sample: ...


def read_features(model: SpeechModel, path: str) -> Array:
    """Read an audio file as features float32 [windows, mels, frames]. Raises InputError where it cannot be read."""
    if model.log_mel is None:
        raise InputError("this is a text model; pass text or token ids instead of audio")
    log_mel = model.log_mel
    samples = read_audio(path, log_mel.sampling_rate_hz)
    return np.stack([log_mel.features(window) for window in windows(samples, log_mel.samples)])


def transcribe(model: SpeechModel, features: Array, *, batch_size: int = 8, **settings: Any) -> Output:
    """Generate for the windows of one file, and join their outputs.

    Parameters
    ----------
    model
        The runner of a speech model.
    features
        The windows' features float32 [windows, mels, frames].
    batch_size
        Windows in the running batch, at most.
    **settings
        Settings of ``model.generate``.
    """
    scheduler = model.scheduler(min(batch_size, len(features)))  # on a GPU every place takes every step
    samples = [model.sample_of_features(number, window, settings) for number, window in enumerate(features)]
    found = scheduler.run(samples)
    return join([output_of(model, found[sample.number], sample.options) for sample in samples])


def transcribe_files(
    model: SpeechModel, paths: Iterable[str | InputError], *, batch_size: int = 8, typed: bool = False, **settings: Any
) -> Iterator[OpenInput]:
    """Transcribe audio files. Windows of several files run together, while the next files are read.

    Parameters
    ----------
    model
        The runner of a speech model.
    paths
        Names of files, or an error in the place of one.
    batch_size
        Windows in the running batch, at most.
    typed
        Names may come slowly, so that files that are there do not wait for others.
    **settings
        Settings of ``model.generate``.

    Yields
    ------
    OpenInput
        One for each file, in order; a file that cannot be transcribed has a ``failure``.

    Raises
    ------
    GenerationError
        A setting is wrong; raised before any file is read.
    """
    options = model.options(**settings)
    numbers = count()

    def read(number: int, path: str | InputError) -> OpenInput:
        try:
            if isinstance(path, InputError):
                raise path
            features = read_features(model, path)
        except InputError as error:
            return OpenInput(InputResult(number), [], error)
        samples = [model.sample_of_features(next(numbers), window, settings) for window in features]
        return OpenInput(InputResult(number), samples)

    inputs = (read(number, path) for number, path in enumerate(paths, start=1))
    yield from run_inputs(model, inputs, max_rows=batch_size * options.num_beams, typed=typed, ahead=FILES_AHEAD)


def named_files(lines: Iterable[bytes]) -> Iterator[str | InputError]:
    """The file names in lines of UTF-8, or an error in the place of one."""
    for number, line in enumerate(lines):
        name = (line.removeprefix(codecs.BOM_UTF8) if not number else line).rstrip(b"\r\n")
        try:
            yield name.decode()
        except UnicodeDecodeError:
            yield InputError(f"{line!r} is not UTF-8; expected the name of an audio file")
