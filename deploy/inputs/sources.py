"""Sources other than text, such as audio and image files, as inputs of the loop in `run.py`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, TypeAlias

from tightbeam.deploy.arrays import Array
from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.inputs.file_lines import FileLine
from tightbeam.deploy.inputs.files.audio import as_samples
from tightbeam.deploy.inputs.json_line import TRUNCATE, in_json, settings_of_line
from tightbeam.deploy.inputs.open_input import OpenInput
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.inputs.run import MOST_OPEN, FoundSegments, FoundText, run_inputs
from tightbeam.deploy.model.model import Model

__all__ = ["MakeReader", "SourceReader", "check_count", "check_recordings", "run_sources"]

MOST_TOGETHER = 1 << 20
"""The most inputs or rows that run together: buffers are made for all of them."""


class SourceReader:
    """Base of the readers of audio and images. It makes inputs of sources with common settings.

    Parameters
    ----------
    model : Model
    settings : mapping
        Settings of ``model.generate``.
    numbers : iterator of int, optional
        Numbers of the samples.
    without_tokens : str, optional
        The kind of source, if it has no tokens that a setting could be about.

    Raises
    ------
    GenerationError
        A setting is wrong.
    """

    def __init__(
        self,
        model: Model,
        settings: Mapping[str, Any],
        numbers: Iterator[int] | None = None,
        *,
        without_tokens: str | None = None,
    ) -> None:
        self.model, self.settings = model, settings
        self.numbers = count() if numbers is None else numbers
        self.options = model.settings.options(settings)
        if without_tokens is not None:
            self.options = self.options.without_source_tokens(without_tokens)

    def read(self, number: int, source: Any) -> OpenInput:
        """Read a source, or an error in place of one. If it cannot be read, the input has a failure."""
        named = source if isinstance(source, str) else getattr(source, "name", None)
        result = InputResult(number, self.options.num_return_sequences, source=named)
        try:
            if isinstance(source, InputError):
                raise source
            return self.open(result, source)
        except InputError as error:
            return OpenInput(result, [], error)

    def open(self, result: InputResult, source: Any) -> OpenInput:
        """Make the input of a source. Raises InputError if it cannot be read."""
        raise NotImplementedError


MakeReader: TypeAlias = Callable[..., SourceReader]
"""Makes a reader from a model, settings and the ``numbers`` of its samples. Raises GenerationError."""


class _LineReader:
    """Reads sources. A `FileLine` has settings of its own above the common ones.

    Parameters
    ----------
    model
        The loaded model.
    make
        Makes a reader.
    settings
        Settings of all lines.
    batch_size
        The most inputs in the running batch, with the number of beams in these settings.

    Attributes
    ----------
    max_rows : int
        The most rows that run together.
    """

    def __init__(self, model: Model, make: MakeReader, settings: Mapping[str, Any], batch_size: int) -> None:
        self._make, self._settings = partial(make, model, numbers=count()), settings
        self._windows = model.has_windows
        self._common = self._make(settings)
        self.max_rows = batch_size * self._common.options.num_beams

    def read(self, number: int, source: Any) -> OpenInput:
        """Read a source. If it cannot be read, the input has a failure."""
        if not isinstance(source, FileLine):
            return self._common.read(number, source)
        try:
            if TRUNCATE in source.settings:
                raise InputError("truncate cuts texts, not files; leave it out")
            settings, _, notes = settings_of_line(source.settings, self._settings, False, speech=self._windows)
            reader = self._make(settings)
            if reader.options.num_beams > self.max_rows:
                raise InputError(
                    f"num_beams={reader.options.num_beams} is more than the {self.max_rows} rows that run together; "
                    f"pass {self.max_rows} or less, or a larger --batch-size"
                )
        except (InputError, GenerationError) as error:
            returned = self._common.options.num_return_sequences
            return OpenInput(InputResult(number, returned, source=source.name), [], in_json(error))
        opened = reader.read(number, source.name)
        if isinstance(opened.failure, InputError):
            opened.failure = in_json(opened.failure)
        opened.result.notes[:0] = notes
        return opened


def run_sources(
    model: Model,
    make: MakeReader,
    sources: Iterable[Any],
    settings: Mapping[str, Any],
    *,
    batch_size: int,
    typed: bool,
    ahead: int,
    most_open: int = MOST_OPEN,
    stream: bool = False,
) -> Iterator[OpenInput | FoundSegments | FoundText]:
    """Generate for sources. Several run together while the next ones are read.

    Parameters
    ----------
    model
        The loaded model.
    make
        Makes a reader.
    sources
        Sources that the reader takes, or names of files with their own settings.
    settings
        Settings of ``model.generate`` for all sources.
    batch_size
        The most samples in the running batch, with the number of beams in these settings.
    typed, ahead, most_open, stream
        Arguments of `run_inputs`.

    Yields
    ------
    OpenInput, FoundSegments or FoundText
        The items of `run_inputs`. The input of an unreadable source has a ``failure``.

    Raises
    ------
    GenerationError
        A setting is wrong; raised before anything is read.
    """
    reader = _LineReader(model, make, settings, batch_size)
    inputs = (reader.read(number, source) for number, source in enumerate(sources, start=1))
    how: dict[str, Any] = {"typed": typed, "ahead": ahead, "most_open": most_open, "stream": stream}
    yield from run_inputs(model, inputs, max_rows=reader.max_rows, **how)


def check_count(name: str, count: Any, counted: str) -> None:
    """Raise InputError unless the argument ``name``, a number of ``counted``, is from 1 to `MOST_TOGETHER`."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise InputError(f"{name}={count!r} is not a number of {counted}; pass 1 or more")
    if count > MOST_TOGETHER:
        raise InputError(f"{name} is more {counted} than can run together; pass {MOST_TOGETHER:,} or less")


def check_list(name: str, given: Any, held: str, each: str) -> None:
    """Raise InputError unless the argument ``name`` is a list of ``held``, one of which is called ``each``."""
    if isinstance(given, str | bytes | Mapping) or not hasattr(given, "__iter__"):
        kind = "one string" if isinstance(given, str) else type(given).__name__
        raise InputError(f"{name} is {kind}, expected a list of {held}; pass [{each}]")


def check_recordings(recordings: Sequence[Any], name: str | None = None) -> list[str | bytes | Array]:
    """Check a caller's recordings, and return them in the form that readers take.

    Parameters
    ----------
    recordings
        Names of files, contents of files, or arrays of samples.
    name
        The name of each in errors; by default "recording" and its index.

    Raises
    ------
    InputError
        A recording has another type.
    """
    return [
        os.fspath(each)
        if isinstance(each, str | os.PathLike | bytes)
        else as_samples(name or f"recording {index}", each)
        for index, each in enumerate(recordings)
    ]
