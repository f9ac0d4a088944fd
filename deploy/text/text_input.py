"""Text or JSONL input: one input a line, run in batches; a line that cannot be run yields its own error."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tightbeam.deploy.errors import GenerationError, InputError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.loaded_model import LoadedModel
from tightbeam.deploy.text.batching import batches
from tightbeam.deploy.text.output import Output, output_of

__all__ = ["InputResult", "run_text_input"]


@dataclass
class InputResult:
    """Result of one line: sequences, best first, or an error.

    Attributes
    ----------
    number : int
        The line's number, from 1.
    returned : int
        Sequences requested.
    sequences, scores, texts
        Fields of `Output`; empty or None where there is an error.
    truncated : bool
        True where the text was cut to the model's positions.
    error : str or None
        Why the line could not be run.
    """

    number: int
    returned: int = 1
    sequences: list[list[int]] = field(default_factory=list)
    scores: list[float] | None = None
    texts: list[str] | None = None
    truncated: bool = False
    error: str | None = None

    def set_output(self, output: Output) -> None:
        """Set what the line gave."""
        self.sequences, self.scores, self.texts = output.sequences, output.scores, output.texts

    def as_json(self) -> str:
        """One line of JSON; ``text`` and ``score`` are those of the best sequence."""
        if self.error is not None:
            return json.dumps({"line": self.number, "error": self.error}, ensure_ascii=False)
        record: dict[str, Any] = {"line": self.number}
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
        if self.truncated:
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
    **settings: Any,
) -> Iterator[InputResult]:
    """Generate for every line.

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
        Lines read, and run together, at a time.
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
    """
    options = model.options(**settings)
    numbered = enumerate(lines, start=1)
    while chunk := list(islice(numbered, batch_size)):
        results = [InputResult(number, options.num_return_sequences) for number, _ in chunk]
        rows: list[_Row] = []
        for result, (number, line) in zip(results, chunk, strict=True):
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            try:
                tokens, result.truncated = _read(model, text.rstrip(b"\r\n"), ids, truncate, settings)
                rows.append(_Row(result, tokens, model.batch_key(len(tokens), settings)))
            except (InputError, GenerationError) as error:
                result.error = str(error)
        for batch in batches(rows, key=lambda row: row.batch_key, size=lambda _: batch_size):
            _generate(model, batch, options, settings)
        yield from results


@dataclass
class _Row:
    """A line that can be run."""

    result: InputResult
    tokens: list[int]
    batch_key: tuple[int, ...]


def _read(
    model: LoadedModel, line: bytes, ids: bool, truncate: bool, settings: dict[str, Any]
) -> tuple[list[int], bool]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 (byte {error.start} is 0x{line[error.start]:02x}); convert the input") from None
    return _read_ids(model, text) if ids else model.encode(text, truncate=truncate, **settings)


def _read_ids(model: LoadedModel, text: str) -> tuple[list[int], bool]:
    try:
        tokens = json.loads(text)
    except (ValueError, RecursionError):
        tokens = None
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
        raise InputError("not a JSON list of token ids; expected a line such as [0, 31414, 2]")
    model.check_ids(tokens)
    return tokens, False


def _generate(
    model: LoadedModel, rows: Sequence[_Row], options: GenerationOptions, settings: Mapping[str, Any]
) -> None:
    ids, mask = model.pad([row.tokens for row in rows], options)
    found = model.generate(ids, mask, **settings)
    for sample, row in enumerate(rows):
        of_row = found.of(sample, row.result.returned)
        row.result.set_output(output_of(model, of_row, options, model.prompt_of(ids)))
