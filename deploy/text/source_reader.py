"""Sources that are no text, such as audio and image files, as inputs of the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any

from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.loaded_model import LoadedModel
from tightbeam.deploy.text.file_lines import FileLine
from tightbeam.deploy.text.input_result import InputResult
from tightbeam.deploy.text.json_line import TRUNCATE, in_json, settings_of_line
from tightbeam.deploy.text.run_inputs import MOST_OPEN, OnSegments, OpenInput, run_inputs

__all__ = ["SourceReader", "run_sources"]


class SourceReader:
    """Base of the readers of audio and images: makes inputs of sources, all with the same settings.

    Parameters
    ----------
    options : GenerationOptions
        The settings, resolved.
    numbers : iterator of int, optional
        Numbers of the samples.
    """

    def __init__(self, options: GenerationOptions, numbers: Iterator[int] | None = None) -> None:
        self.options = options
        self.numbers = count() if numbers is None else numbers

    def read(self, number: int, source: Any) -> OpenInput:
        """Read a source, or an error in the place of one: an input, with its failure where it cannot be read."""
        named = source if isinstance(source, str) else None
        result = InputResult(number, self.options.num_return_sequences, source=named)
        try:
            if isinstance(source, InputError):
                raise source
            return self.open(result, source)
        except InputError as error:
            return OpenInput(result, [], error)

    def open(self, result: InputResult, source: Any) -> OpenInput:
        """Make the input of a source. Raises InputError where it cannot be read."""
        raise NotImplementedError


class _LineReader:
    """Reads sources; those of a `FileLine` with its settings over the common ones.

    Parameters
    ----------
    make
        Makes a reader of settings. Raises GenerationError for wrong ones.
    settings
        Settings of all lines.
    batch_size
        Inputs in the running batch, at most, with the beams of these settings.
    windows
        True for a model whose settings are those of Whisper.

    Attributes
    ----------
    max_rows : int
        Rows that run together, at most.
    """

    def __init__(
        self,
        make: Callable[[Mapping[str, Any]], SourceReader],
        settings: Mapping[str, Any],
        batch_size: int,
        windows: bool,
    ) -> None:
        self._make, self._settings, self._windows = make, settings, windows
        self._common = make(settings)
        self.max_rows = batch_size * self._common.options.num_beams

    def read(self, number: int, source: Any) -> OpenInput:
        """Read a source: an input, with its failure where it cannot be read."""
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
    model: LoadedModel,
    make: Callable[..., SourceReader],
    sources: Iterable[Any],
    settings: Mapping[str, Any],
    *,
    batch_size: int,
    typed: bool,
    ahead: int,
    most_open: int = MOST_OPEN,
    on_segments: OnSegments | None = None,
) -> Iterator[OpenInput]:
    """Generate for sources. Several run together, while the next ones are read.

    Parameters
    ----------
    model
        The runner.
    make
        Makes a reader of settings and ``numbers``, the numbers of its samples. Raises GenerationError for wrong
        settings.
    sources
        Sources as the reader takes them, or names of files with their own settings.
    settings
        Settings of ``model.generate`` for all sources.
    batch_size
        Samples in the running batch, at most, with the beams of these settings.
    typed, ahead, most_open, on_segments
        Those of `run_inputs`.

    Yields
    ------
    OpenInput
        One for each source, in order; one that cannot be read has a ``failure``.

    Raises
    ------
    GenerationError
        A setting is wrong; raised before anything is read.
    """
    reader = _LineReader(partial(make, numbers=count()), settings, batch_size, model.has_windows)
    inputs = (reader.read(number, source) for number, source in enumerate(sources, start=1))
    how: dict[str, Any] = {"typed": typed, "ahead": ahead, "most_open": most_open, "on_segments": on_segments}
    yield from run_inputs(model, inputs, max_rows=reader.max_rows, **how)
