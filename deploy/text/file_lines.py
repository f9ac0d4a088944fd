"""Lines of JSON that name a file, with settings for this file alone in the other fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.text.input_result import InputResult
from tightbeam.deploy.text.json_line import TRUNCATE, read_json_line, settings_of_line
from tightbeam.deploy.text.run_inputs import OpenInput

__all__ = ["FileLine", "LineReader", "file_lines"]


@dataclass(frozen=True)
class FileLine:
    """The name of a file, and settings of ``model.generate`` for it alone."""

    name: str
    settings: Mapping[str, Any]


class SourceReader(Protocol):
    """A reader of files, with its settings resolved."""

    options: GenerationOptions

    def read(self, number: int, source: Any) -> OpenInput: ...


class LineReader:
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
        *,
        windows: bool = False,
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
            return OpenInput(InputResult(number, returned, source=source.name), [], error)
        opened = reader.read(number, source.name)
        opened.result.notes[:0] = notes
        return opened


def file_lines(lines: Iterable[str | InputError], field: str) -> Iterator[FileLine | InputError]:
    """Read JSON lines that have the name of a file in ``field``, or an error in the place of one."""
    for line in lines:
        try:
            if isinstance(line, InputError):
                raise line
            name, settings = read_json_line(line, field)
            if not isinstance(name, str):
                raise InputError(f"{field} is {type(name).__name__}, expected the name of a file; pass it in quotes")
            yield FileLine(name, settings)
        except InputError as error:
            yield error
