"""Text or JSONL input: one input a line, results in their order; a line that cannot be run yields its own error."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.loaded_model import LoadedModel
from tightbeam.deploy.scheduling.queue import WINDOW
from tightbeam.deploy.scheduling.sample import Sample
from tightbeam.deploy.scheduling.scheduler import FailedSample, Scheduler
from tightbeam.deploy.text.output import Output, output_of
from tightbeam.deploy.text.read_ahead import ReadAhead

__all__ = ["InputResult", "parse_ids", "run_text_input"]

MOST_OPEN = 1024
"""Lines that are read and have no result yet, or one that waits for an earlier line's."""
PATIENCE_S = 0.02
"""Time for a typed line to come, while others run."""


@dataclass
class InputResult:
    """Result of one line: sequences, best first, or an error.

    Attributes
    ----------
    number : int
        The line's number, from 1.
    file : str or None
        The line's file, where there are several.
    returned : int
        Sequences requested.
    sequences, scores, texts, new_tokens
        Fields of `Output`; empty, None or 0 where there is an error.
    source_tokens : int
        Tokens that the model was given.
    cut : int
        Tokens of the text beyond these, cut off since the model has no positions for them.
    error : str or None
        Why the line could not be run.
    """

    number: int
    returned: int = 1
    sequences: list[list[int]] = field(default_factory=list)
    scores: list[float] | None = None
    texts: list[str] | None = None
    new_tokens: int = 0
    source_tokens: int = 0
    cut: int = 0
    error: str | None = None
    file: str | None = None

    def set_output(self, output: Output) -> None:
        """Set what the line gave."""
        self.sequences, self.scores, self.texts = output.sequences, output.scores, output.texts
        self.new_tokens = output.new_tokens

    def as_json(self) -> str:
        """One line of JSON; ``text`` and ``score`` are those of the best sequence."""
        record: dict[str, Any] = {} if self.file is None else {"file": self.file}
        record["line"] = self.number
        if self.error is not None:
            return json.dumps({**record, "error": self.error}, ensure_ascii=False)
        if self.texts is not None:
            record["text"] = self.texts[0]
        if self.scores is not None:
            record["score"] = _finite(self.scores[0])
        if self.texts is not None and len(self.texts) > 1:
            record["texts"] = self.texts
        if self.scores is not None and len(self.scores) > 1:
            record["scores"] = [_finite(score) for score in self.scores]
        record["tokens"] = self.sequences[0]
        if len(self.sequences) > 1:
            record["sequences"] = self.sequences
        if self.cut:
            record["truncated"] = True
        return json.dumps(record, ensure_ascii=False, allow_nan=False)

    def as_text(self) -> str:
        """The generated texts, or ids, one a line; as many empty lines where there is an error."""
        if self.error is not None:
            return "\n" * (self.returned - 1)
        shown = self.texts if self.texts is not None else [" ".join(map(str, row)) for row in self.sequences]
        return "\n".join(" ".join(text.splitlines()) for text in shown)


def _finite(score: float) -> float | None:
    """The score, or None for infinity, which JSON lacks: the score of a sequence of forbidden tokens."""
    return score if math.isfinite(score) else None


def run_text_input(
    model: LoadedModel,
    lines: Iterable[bytes],
    *,
    ids: bool = False,
    truncate: bool = False,
    batch_size: int = 8,
    typed: bool = False,
    first: int = 1,
    **settings: Any,
) -> Iterator[InputResult]:
    """Generate for every line. Lines are read and tokenised in a thread of their own, ahead of those that run.

    Parameters
    ----------
    model
        The runner.
    lines
        UTF-8 text, or JSON lists of token ids.
    ids
        Lines are lists of token ids.
    truncate
        Cut texts that are longer than the model's positions.
    batch_size
        Lines in the running batch, at most.
    typed
        Lines may come slowly, so that those that are there do not wait for others. Which lines run together then
        depends on when they come; otherwise on the lines alone. Where samples cannot join, a batch still waits until it
        is full or the lines end.
    first
        Number of the first of these lines. Line 1 may begin with a byte order mark.
    **settings
        Settings of ``model.generate``.

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
    options = model.options(**settings)
    if not ids:
        model.require_tokenizer()

    def parse(number: int, line: bytes) -> _Row:
        result = InputResult(number, options.num_return_sequences)
        text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        try:
            tokens, result.cut = _read(model, text.rstrip(b"\r\n"), ids, truncate, settings)
            result.source_tokens = len(tokens)
            return _Row(result, model.sample(number, tokens, settings))
        except (InputError, GenerationError) as error:
            result.error = str(error)
            return _Row(result)

    scheduler = model.scheduler(batch_size)
    with ReadAhead(parse(number, line) for number, line in enumerate(lines, start=first)) as rows:
        yield from _run(model, scheduler, rows, typed)
    scheduler.close()


@dataclass
class _Row:
    """A line, and its sample if it can be run."""

    result: InputResult
    sample: Sample | None = None

    @property
    def done(self) -> bool:
        return self.sample is None


def _run(model: LoadedModel, scheduler: Scheduler, rows: ReadAhead[_Row], typed: bool) -> Iterator[InputResult]:
    """Run rows as they come, and yield their results in their order."""
    open_rows: dict[int, _Row] = {}  # by number, in the order of the lines
    while True:
        while scheduler.waiting <= WINDOW and len(open_rows) < MOST_OPEN:
            row = rows.get(PATIENCE_S if typed and not scheduler.wants_more else None)
            if row is None:
                break
            open_rows[row.result.number] = row
            if row.sample is not None:
                scheduler.add(row.sample)
            elif len(open_rows) == 1:  # nothing before it to wait for
                break
        for ended in scheduler.turn() if scheduler.active else ():
            row = open_rows[ended.number]
            sample, row.sample = row.sample, None
            assert sample is not None
            if isinstance(ended, FailedSample):
                row.result.error = str(ended.error)
            else:
                row.result.set_output(output_of(model, ended.result, sample.options, sample.prompt_length))
        for number in list(open_rows):
            if not open_rows[number].done:
                break
            yield open_rows.pop(number).result
        if not open_rows and rows.ended:
            return


def _read(
    model: LoadedModel, line: bytes, ids: bool, truncate: bool, settings: dict[str, Any]
) -> tuple[list[int], int]:
    """The line's tokens, and the number of tokens that were cut off."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 (byte {error.start} is 0x{line[error.start]:02x}); convert the input") from None
    if not ids:
        return model.encode(text, truncate=truncate, **settings)
    tokens = parse_ids(text)
    model.check_ids(tokens)
    return tokens, 0


def parse_ids(text: str) -> list[int]:
    """Parse a JSON list of token ids. Raises InputError."""
    try:
        tokens = json.loads(text)
    except (ValueError, RecursionError):
        tokens = None
    if tokens == []:
        raise InputError("an empty list of token ids; expected at least one")
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise InputError("not a JSON list of token ids; expected a line such as [0, 31414, 2]")
    return tokens
