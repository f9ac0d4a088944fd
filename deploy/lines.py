"""Lines in, results out: batches of lines through a runner, where a bad line never harms its neighbours."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from tightbeam.deploy.generation import GenerationError, GenerationOptions
from tightbeam.deploy.runner import Runner
from tightbeam.deploy.text import InputError

__all__ = ["LineResult", "run_lines", "without_padding"]


@dataclass
class LineResult:
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


def run_lines(
    runner: Runner,
    lines: Iterable[bytes],
    *,
    ids: bool = False,
    truncate: bool = False,
    batch_size: int = 8,
    **settings: Any,
) -> Iterator[LineResult]:
    """Run every line, in order, ``batch_size`` at a time.

    A line is UTF-8 text, or with ``ids`` a JSON list of token ids. A line that cannot be run yields its error.
    Raises GenerationError for the settings, before any line is read.
    """
    options = runner.options(**settings)
    numbered = enumerate(lines, start=1)
    while chunk := list(islice(numbered, batch_size)):
        results: list[LineResult] = []
        rows: dict[int, list[tuple[LineResult, list[int]]]] = {}
        for number, line in chunk:
            result = LineResult(number, options.num_return_sequences)
            results.append(result)
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            try:
                tokens, result.truncated = _read(runner, text.rstrip(b"\r\n"), ids, truncate, settings)
                rows.setdefault(_new_tokens(runner, len(tokens), settings), []).append((result, tokens))
            except (InputError, GenerationError) as error:
                result.error = str(error)
        for together in rows.values():
            _generate(runner, together, not ids, options, settings)
        yield from results


def _new_tokens(runner: Runner, prompt_length: int, settings: dict[str, Any]) -> int:
    """How many tokens a prompt leaves room for where no setting says how many to make, so that a long one takes none of
    its neighbours'; 0 where that does not matter. Raises GenerationError for one that is too long for the settings."""
    if not runner.decoder_only:
        return 0
    options = runner.options_for(prompt_length, settings)
    return 0 if options.limited_by else options.max_length - prompt_length


def _read(runner: Runner, line: bytes, ids: bool, truncate: bool, settings: dict[str, Any]) -> tuple[list[int], bool]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 (byte {error.start} is 0x{line[error.start]:02x}); convert the input") from None
    return _read_ids(runner, text) if ids else runner.encode(text, truncate=truncate, **settings)


def _read_ids(runner: Runner, text: str) -> tuple[list[int], bool]:
    try:
        tokens = json.loads(text)
    except (ValueError, RecursionError):
        tokens = None
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
        raise InputError("not a JSON list of token ids; expected a line such as [0, 31414, 2]")
    sizes = runner.manifest.sizes
    outside = next((token for token in tokens if not 0 <= token < sizes.source_vocabulary), None)
    if outside is not None:
        raise InputError(f"token id {outside} is outside the vocabulary; expected 0 to {sizes.source_vocabulary - 1}")
    if len(tokens) > sizes.max_source:
        raise InputError(f"{len(tokens)} token ids are more than {runner.longest_source}; shorten them")
    return tokens, False


def _generate(
    runner: Runner,
    rows: list[tuple[LineResult, list[int]]],
    as_text: bool,
    options: GenerationOptions,
    settings: dict[str, Any],
) -> None:
    batch, mask = runner.pad([tokens for _, tokens in rows], options)
    prompt = batch.shape[1] if runner.decoder_only else 0
    found = runner.generate(batch, mask, **settings)
    for index, (result, _) in enumerate(rows):
        own = slice(index * result.returned, (index + 1) * result.returned)
        new = found.sequences[own, prompt:].tolist()
        given = 0 if runner.decoder_only else 1  # the start token may be an end token too
        result.sequences = [without_padding(row, options.eos_token_ids, given) for row in new]
        if found.scores is not None:
            result.scores = [float(np.float32(score)) for score in found.scores[own]]
        if as_text:
            result.texts = [runner.decode(row) for row in result.sequences]


def without_padding(row: list[int], ends: tuple[int, ...], given: int = 1) -> list[int]:
    """A sequence up to its end token, sought after the ``given`` ones; what follows is there for longer neighbours."""
    end = next((index for index, token in enumerate(row) if index >= given and token in ends), len(row) - 1)
    return row[: end + 1]
