"""Lines in, results out: batches of lines through a runner, where a bad line never harms its neighbours."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.generation.options import GenerationError, GenerationOptions
from tightbeam.deploy.loaded_model import LoadedModel
from tightbeam.deploy.text.output import Output, output_of

__all__ = ["InputResult", "run_text_input"]


@dataclass
class InputResult:
    """What became of one input line: sequences (best first) with their scores, or an error."""

    number: int
    """counted from 1"""
    returned: int = 1
    """sequences asked for"""
    sequences: list[list[int]] = field(default_factory=list)
    """from the start token on; of a decoder-only model, what comes after the prompt"""
    scores: list[float] | None = None
    texts: list[str] | None = None
    truncated: bool = False
    error: str | None = None

    def take(self, output: Output) -> None:
        """What the line gave."""
        self.sequences, self.scores, self.texts = output.sequences, output.scores, output.texts

    def as_json(self) -> str:
        """One line of JSON, ``text`` and ``score`` being the best sequence's."""
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
        """The generated texts, or ids, a line each; as many empty lines where there was an error."""
        if self.error is not None:
            return "\n" * (self.returned - 1)
        shown = self.texts if self.texts is not None else [" ".join(map(str, row)) for row in self.sequences]
        return "\n".join(" ".join(text.splitlines()) for text in shown)


def _finite(score: float) -> float | None:
    """JSON has no infinity, which is the score of a sequence of forbidden tokens."""
    return score if math.isfinite(score) else None


def run_text_input(
    runner: LoadedModel,
    lines: Iterable[bytes],
    *,
    ids: bool = False,
    truncate: bool = False,
    batch_size: int = 8,
    **settings: Any,
) -> Iterator[InputResult]:
    """Run every line, in order, ``batch_size`` at a time.

    A line is UTF-8 text, or with ``ids`` a JSON list of token ids. A line that cannot be run yields its error.
    Raises GenerationError for the settings, before any line is read.
    """
    options = runner.options(**settings)
    numbered = enumerate(lines, start=1)
    while chunk := list(islice(numbered, batch_size)):
        results: list[InputResult] = []
        rows: dict[tuple[int, ...], list[tuple[InputResult, list[int]]]] = {}
        for number, line in chunk:
            result = InputResult(number, options.num_return_sequences)
            results.append(result)
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            try:
                tokens, result.truncated = _read(runner, text.rstrip(b"\r\n"), ids, truncate, settings)
                rows.setdefault(runner.batch_key(len(tokens), settings), []).append((result, tokens))
            except (InputError, GenerationError) as error:
                result.error = str(error)
        for together in rows.values():
            _generate(runner, together, options, settings)
        yield from results


def _read(
    runner: LoadedModel, line: bytes, ids: bool, truncate: bool, settings: dict[str, Any]
) -> tuple[list[int], bool]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 (byte {error.start} is 0x{line[error.start]:02x}); convert the input") from None
    return _read_ids(runner, text) if ids else runner.encode(text, truncate=truncate, **settings)


def _read_ids(runner: LoadedModel, text: str) -> tuple[list[int], bool]:
    try:
        tokens = json.loads(text)
    except (ValueError, RecursionError):
        tokens = None
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
        raise InputError("not a JSON list of token ids; expected a line such as [0, 31414, 2]")
    runner.check_ids(tokens)
    return tokens, False


def _generate(
    runner: LoadedModel,
    rows: list[tuple[InputResult, list[int]]],
    options: GenerationOptions,
    settings: dict[str, Any],
) -> None:
    batch, mask = runner.pad([tokens for _, tokens in rows], options)
    found = runner.generate(batch, mask, **settings)
    for sample, (result, _) in enumerate(rows):
        result.take(output_of(runner, found.of(sample, result.returned), options, runner.prompt_of(batch)))
