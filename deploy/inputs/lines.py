"""Lines of text or JSON as inputs. Each line is one input, results keep the order, and a bad line gets an error."""

from __future__ import annotations

import codecs
import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.generation.translation import check_without_text
from tightbeam.deploy.inputs.json_line import check_json_size, in_json, read_json_line, read_settings, settings_of_line
from tightbeam.deploy.inputs.newlines import unescaped
from tightbeam.deploy.inputs.open_input import OpenInput
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.inputs.run import FoundSegments, FoundText, finished, run_inputs
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.text.truncation import Truncation

__all__ = ["MOST_TEXT_BYTES", "LineFormat", "check_length", "parse_ids", "read_lines", "run_lines", "stream_lines"]

MOST_TEXT_BYTES = 1 << 24
"""Bound on a line, and on a file that is one text. It is held in memory, and a tokenizer makes 200 times as many bytes
of it."""


@dataclass(frozen=True)
class LineFormat:
    """The content of the lines of a file.

    Attributes
    ----------
    ids : bool
        A line is a JSON list of token ids, in place of text.
    field : str or None
        The field that holds the text, the messages or the token ids of a line that is a JSON object. The other fields
        are settings.
        None for lines that are not JSON objects.
    truncate : bool or str
        Cut texts that are longer than the model's positions: True at the model's usual side, or "left" or "right".
    settings : str or None
        The field that holds the settings, in place of the other fields.
    exact : bool
        What is given as a line is a whole text, with its line breaks to the last; otherwise the line's end is left out.
    escapes : bool
        A line of text has the escapes of `unescaped`.
    chunks : bool
        A text that is longer than the model's positions is summarised in chunks, in place of an error.
    """

    ids: bool = False
    field: str | None = None
    truncate: Truncation = False
    settings: str | None = None
    exact: bool = False
    escapes: bool = False
    chunks: bool = False


def run_lines(
    model: Model,
    lines: Iterable[bytes],
    line_format: LineFormat = LineFormat(),
    *,
    batch_size: int = 8,
    max_rows: int | None = None,
    typed: bool = False,
    first: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> Generator[InputResult, None, None]:
    """Generate for every line. Reading, generating, and the caller's work on results overlap.

    Parameters
    ----------
    model
        The loaded model.
    lines
        UTF-8 lines.
    line_format
        Their content.
    batch_size
        The most lines that run together, with the number of beams in ``settings``.
    max_rows
        The most rows (lines x beams) that run together; by default the rows of ``batch_size`` lines.
    typed
        Lines may come slowly, so lines that are there do not wait for others. Which lines run together then depends on
        when they come, and otherwise on the lines alone. If samples cannot join a running batch, it still waits until
        it is full or the lines end.
    first
        Number of the first of these lines. Line 1 may begin with a byte order mark.
    settings
        Settings of ``model.generate``, which the settings of a line override.

    Yields
    ------
    InputResult
        One for each line, in order.

    Raises
    ------
    GenerationError
        A setting is wrong; raised before any line is read.
    InputError
        The lines are text, and the bundle has no tokenizer.
    """
    lines_run = _run(model, lines, line_format, batch_size, max_rows, typed, first, settings or {}, stream=False)
    for done in finished(lines_run):
        yield done.result


def stream_lines(
    model: Model,
    lines: Iterable[bytes],
    line_format: LineFormat = LineFormat(),
    *,
    batch_size: int = 8,
    max_rows: int | None = None,
    typed: bool = False,
    first: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> Generator[FoundText | InputResult, None, None]:
    """Generate for every line like `run_lines`, and give the best text of each line in pieces before its result.

    The arguments and the errors are those of `run_lines`. The lines run together; the pieces of a line come behind the
    result of the line before it.

    Yields
    ------
    FoundText or InputResult
    """
    settings = settings or {}
    model.text.require_tokenizer()
    for item in _run(model, lines, line_format, batch_size, max_rows, typed, first, settings, stream=True):
        if isinstance(item, FoundText):
            yield item
        elif isinstance(item, OpenInput):
            yield item.result


def _run(
    model: Model,
    lines: Iterable[bytes],
    line_format: LineFormat,
    batch_size: int,
    max_rows: int | None,
    typed: bool,
    first: int,
    settings: Mapping[str, Any],
    *,
    stream: bool,
) -> Iterator[OpenInput | FoundSegments | FoundText]:
    """Run lines as `run_lines` does, and yield the items of `run_inputs`."""
    options = model.settings.options(settings)
    if not line_format.ids:
        model.text.require_tokenizer()
    most = max_rows or batch_size * options.num_beams
    reader = _Reader(model, line_format, settings, most, options.num_return_sequences)
    reader.check(settings)
    inputs = map(reader.read, _numbered(lines, first, exact=line_format.exact))
    yield from run_inputs(model, inputs, max_rows=most, typed=typed, stream=stream)


def _numbered(lines: Iterable[bytes], first: int, *, exact: bool) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(lines, start=first):
        line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        yield number, line if exact else line.rstrip(b"\r\n")


@dataclass(frozen=True)
class _Reader:
    """Reads lines as samples. ``returned`` is the number of sequences of a line without a setting for it."""

    model: Model
    format: LineFormat
    settings: Mapping[str, Any]
    max_rows: int
    returned: int

    def read(self, numbered: tuple[int, bytes]) -> OpenInput:
        number, line = numbered
        result = InputResult(number, self.returned)
        try:
            return self._read(result, line)
        except (InputError, GenerationError) as error:
            return OpenInput(result, [], error if self.format.field is None else in_json(error))

    def _read(self, result: InputResult, line: bytes) -> OpenInput:
        source, settings, truncate = _decoded(line), self.settings, self.format.truncate
        if self.format.field is not None:
            source, own = read_json_line(source, self.format.field)
            if self.format.settings is not None:
                own = read_settings(own.get(self.format.settings), self.format.settings)
            settings, truncate, result.notes = settings_of_line(own, settings, truncate)
            self.check(settings)
        if self.format.ids:
            tokens = parse_ids(source)
            self.model.text.check_ids(tokens)
            check_without_text(settings)
        elif not isinstance(source, str | list):
            held = type(source).__name__
            raise InputError(f"{self.format.field} is {held}, expected a text or a list of messages; pass one of them")
        else:
            source = unescaped(source) if self.format.escapes and isinstance(source, str) else source
            if self.format.chunks and not truncate and isinstance(source, str) and not self.model.text.fits(source):
                from tightbeam.deploy.inputs.long_text import LongText

                return LongText.of(self.model, result, source, settings)
            tokens, result.cut = self.model.text.encode(source, truncate=truncate, **settings)
            result.cut_side = self.model.text.cut_side(source, truncate) if result.cut else None
        sample = self.model.sample(result.number, tokens, settings)
        result.returned = sample.options.num_return_sequences
        return OpenInput(result, [sample])

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise GenerationError for settings that no source can be run with."""
        options = self.model.settings.options(settings)
        if options.num_beams > self.max_rows:
            raise GenerationError(
                f"{options.rows_asked} is more than the {self.max_rows} rows that run together; "
                f"pass {self.max_rows} or less, or a larger --max-rows"
            )


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file. Of a line that is too long its beginning is read, which `check_length` refuses."""
    while line := file.readline(MOST_TEXT_BYTES + 1):
        yield line
        while len(line) > MOST_TEXT_BYTES and not line.endswith(b"\n"):
            line = file.readline(MOST_TEXT_BYTES + 1)


def check_length(line: bytes) -> None:
    """Raise InputError for a line that is too long."""
    if len(line) > MOST_TEXT_BYTES:
        raise InputError(f"the line has more than {MOST_TEXT_BYTES:,} bytes; cut it into lines of that at most")


def _decoded(line: bytes) -> Any:
    check_length(line)
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 (byte {error.start} is 0x{line[error.start]:02x}); convert the input") from None


def parse_ids(source: Any) -> list[int]:
    """Parse token ids: a list, or a JSON list in a text. Raises InputError."""
    tokens = source
    if isinstance(source, str):
        check_json_size(source)
        try:
            tokens = json.loads(source)
        except (ValueError, RecursionError):
            tokens = None
    if tokens == []:
        raise InputError("an empty list of token ids; expected at least one")
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise InputError("not a JSON list of token ids; expected a line such as [0, 31414, 2]")
    return tokens
