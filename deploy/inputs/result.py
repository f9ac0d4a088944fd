"""The result of one input of a file, as JSON or as text."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tightbeam.deploy.arrays import Floats
from tightbeam.deploy.inputs.newlines import Newlines, spaced
from tightbeam.deploy.inputs.output import Output, TextSegment, TokenScores
from tightbeam.deploy.inputs.token_alternatives import TokenAlternatives
from tightbeam.deploy.search import FinishReason
from tightbeam.deploy.text.truncation import Side

__all__ = ["InputResult", "page_records", "segment_records"]


@dataclass
class InputResult:
    """The result of one line: sequences, best first, or an error.

    Attributes
    ----------
    number : int
        The line's number, from 1.
    file : str or None
        The line's file, if there are several files.
    returned : int
        Sequences requested.
    sequences, scores, texts, new_tokens, token_scores, alternatives, attentions, finish_reasons, source_tokens,
    by_default_length
        The fields of `Output`; empty, None, 0 or False if there is an error.
    cut : int
        Further tokens of the text, cut off because the model has no positions for them.
    cut_side : "left", "right" or None
        The side of the text at which they were; None if nothing was cut.
    error : str or None
        The reason why the line could not be run.
    notes : list of str
        Notes for the user, such as settings of the line without effect.
    seconds : float
        Length of a recording.
    source : str or None
        The file name of a recording or an image.
    segments : list of TextSegment or None
        The segments of a recording that was transcribed by timestamps.
    pages : list of Output or None
        One output for each page of an image with several pages.
    language, language_probability
        Fields of `Output`.
    """

    number: int
    returned: int = 1
    sequences: list[list[int]] = field(default_factory=list)
    scores: list[float] | None = None
    texts: list[str] | None = None
    new_tokens: int = 0
    token_scores: list[TokenScores] | None = None
    alternatives: list[TokenAlternatives] | None = None
    attentions: list[Floats] | None = None
    finish_reasons: list[FinishReason] | None = None
    source_tokens: int = 0
    by_default_length: bool = False
    cut: int = 0
    cut_side: Side | None = None
    error: str | None = None
    file: str | None = None
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    source: str | None = None
    segments: list[TextSegment] | None = None
    pages: list[Output] | None = None
    language: str | None = None
    language_probability: float | None = None

    def set_output(self, output: Output) -> None:
        """Set the fields of an output."""
        self.sequences, self.scores, self.texts = output.sequences, output.scores, output.texts
        self.token_scores, self.alternatives = output.token_scores, output.alternatives
        self.attentions = output.attentions
        self.new_tokens, self.segments, self.pages = output.new_tokens, output.segments, output.pages
        self.language, self.language_probability = output.language, output.language_probability
        self.finish_reasons, self.source_tokens = output.finish_reasons, output.source_tokens
        self.by_default_length = output.by_default_length

    def as_json(self) -> str:
        """Return one line of JSON. ``text`` and ``score`` belong to the best sequence."""
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
        if self.finish_reasons is not None:
            record["finish_reason"] = self.finish_reasons[0]
            if len(self.finish_reasons) > 1:
                record["finish_reasons"] = self.finish_reasons
        if self.source_tokens:
            record["source_tokens"] = self.source_tokens
        record["new_tokens"] = self.new_tokens
        record["tokens"] = self.sequences[0]
        if len(self.sequences) > 1:
            record["sequences"] = self.sequences
        alternatives = None if self.alternatives is None else list(map(list, self.alternatives))
        attentions = None if self.attentions is None else list(map(_rounded, self.attentions))
        for name, each in (
            ("token_scores", _finite_all(self.token_scores)),
            ("alternatives", alternatives),
            ("attention", attentions),
        ):
            if each is not None:
                record[name] = each[0]
                if len(each) > 1:
                    record[f"sequences_{name}"] = each
        if self.language is not None:
            probability = self.language_probability
            record["language"] = self.language
            record["language_probability"] = None if probability is None else round(probability, 4)
        if self.segments is not None:
            record["segments"] = segment_records(self.segments)
        if self.pages is not None:
            record["pages"] = page_records(self.pages)
        if self.cut:
            record |= {"truncated": True, "truncated_tokens": self.cut, "truncated_side": self.cut_side}
        return json.dumps(record, ensure_ascii=False, allow_nan=False)

    def as_text(self, newlines: Newlines = spaced) -> str:
        """Return the generated texts, or ids, one a line; for an error as many empty lines.

        Parameters
        ----------
        newlines
            Writes each text; by default with spaces in place of line breaks.
        """
        if self.error is not None:
            return "\n" * (self.returned - 1)
        shown = self.texts if self.texts is not None else [" ".join(map(str, row)) for row in self.sequences]
        return "\n".join(map(newlines, shown))


def segment_records(segments: Sequence[TextSegment]) -> list[dict[str, Any]]:
    """Return segments as objects for JSON."""
    return list(map(_segment, segments))


def _segment(part: TextSegment) -> dict[str, Any]:
    times = {"start": round(part.start_s, 2), "end": round(part.end_s, 2)}
    record: dict[str, Any] = {**times, "text": part.text, "tokens": part.tokens}
    if part.token_timestamps is not None:
        record["token_timestamps"] = part.token_timestamps
    if part.words is not None:
        record["words"] = [
            {"word": own.word, "start": own.start_s, "end": own.end_s, "probability": round(own.probability, 4)}
            for own in part.words
        ]
    return record


def page_records(pages: Sequence[Output]) -> list[dict[str, Any]]:
    """Return the best sequence of each page as an object for JSON."""
    return [
        {
            **({} if page.texts is None else {"text": page.texts[0]}),
            **({} if page.scores is None else {"score": _finite(page.scores[0])}),
            **({} if page.finish_reasons is None else {"finish_reason": page.finish_reasons[0]}),
            "new_tokens": page.new_tokens,
            "tokens": page.sequences[0],
        }
        for page in pages
    ]


def _rounded(attention: Floats) -> list[list[float]]:
    """Return attention [T, N] with the digits that say something."""
    return [[round(weight, 4) for weight in row] for row in attention.tolist()]


def _finite_all(scores: list[TokenScores] | None) -> list[TokenScores] | None:
    return scores and [[None if score is None else _finite(score) for score in row] for row in scores]


def _finite(score: float) -> float | None:
    """Return the score, or None for infinity, which JSON lacks. A sequence of forbidden tokens has that score."""
    return score if math.isfinite(score) else None
