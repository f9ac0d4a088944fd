"""Results as columns of an Arrow table. The columns have the same types in every table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.fields import ATTENTION
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.scoring import Scoring
from tightbeam.deploy.inputs.result import InputResult, segment_records
from tightbeam.deploy.ray.library import optional_library

__all__ = ["check_without_attention", "with_results"]


def with_results(
    table: Any,
    results: Sequence[InputResult],
    prefix: str = "",
    scoring: Scoring | None = None,
    *,
    several: bool = False,
    sound: bool = False,
) -> Any:
    """Append the columns of results to a table.

    Parameters
    ----------
    table : pyarrow.Table
        The rows.
    results : sequence of InputResult
        One for each row.
    prefix : str
        Beginning of the new columns' names.
    scoring : Scoring, optional
        The scores of single tokens that were asked for.
    several : bool
        Rows have settings of their own, so any of them may return several sequences.
    sound : bool
        Rows are recordings.

    Returns
    -------
    pyarrow.Table
        With ``text`` (string), ``score`` (float), ``tokens`` (list of int), ``finish_reason`` (string),
        ``source_tokens`` and ``new_tokens`` (int), ``error`` (string) and ``truncated`` (bool) after the table's
        columns. If several sequences are returned, also ``texts``, ``scores``, ``sequences`` and ``finish_reasons``. If
        ``scoring`` asks for them, also ``token_scores`` (list of float) and ``alternatives`` (list of lists of token
        and score), and with several sequences ``sequences_token_scores`` and ``sequences_alternatives``. For recordings
        also ``language`` (string), ``language_probability`` (float) and ``segments`` (list of structs of ``start``,
        ``end``, ``text`` and ``tokens``).
    """
    arrow = optional_library("pyarrow")
    text, score, tokens = arrow.string(), arrow.float32(), arrow.list_(arrow.int64())
    columns: dict[str, tuple[Any, list[Any]]] = {
        "text": (text, [_first(result.texts) for result in results]),
        "score": (score, [_first(_finite(result.scores)) for result in results]),
        "tokens": (tokens, [_first(result.sequences) for result in results]),
        "finish_reason": (text, [_first(result.finish_reasons) for result in results]),
        "source_tokens": (arrow.int64(), [result.source_tokens for result in results]),
        "new_tokens": (arrow.int64(), [result.new_tokens for result in results]),
        "error": (text, [result.error for result in results]),
        "truncated": (arrow.bool_(), [result.cut > 0 for result in results]),
    }
    several = several or any(result.returned > 1 for result in results)
    if several:
        columns["texts"] = arrow.list_(text), [result.texts for result in results]
        columns["scores"] = arrow.list_(score), [_finite(result.scores) for result in results]
        columns["finish_reasons"] = arrow.list_(text), [result.finish_reasons for result in results]
        columns["sequences"] = arrow.list_(tokens), [result.sequences or None for result in results]
    columns |= _of_tokens(arrow, results, scoring, several)
    if sound:
        times = [("start", arrow.float64()), ("end", arrow.float64())]
        segments = arrow.list_(arrow.struct([*times, ("text", text), ("tokens", tokens)]))
        columns["language"] = text, [result.language for result in results]
        columns["language_probability"] = score, [result.language_probability for result in results]
        columns["segments"] = segments, [_segments(result) for result in results]
    for name, (kind, values) in columns.items():
        table = table.append_column(prefix + name, arrow.array(values, kind))
    return table


def check_without_attention(options: GenerationOptions) -> None:
    """Raise GenerationError for ``return_attention``, which tables have no column for."""
    if options.return_attention:
        raise GenerationError(f"{ATTENTION}=True has no column in a table; leave it out, or run the texts without Ray")


def _of_tokens(
    arrow: Any, results: Sequence[InputResult], scoring: Scoring | None, several: bool
) -> dict[str, tuple[Any, list[Any]]]:
    """Return the columns with scores of single tokens that were asked for."""
    columns: dict[str, tuple[Any, list[Any]]] = {}
    each: list[tuple[str, Any, list[Any]]] = []
    if scoring is not None and scoring.tokens:
        each.append(("token_scores", arrow.float32(), [result.token_scores for result in results]))
    if scoring is not None and scoring.alternatives:
        pair = arrow.struct([("token", arrow.int64()), ("score", arrow.float32())])
        found = [result.alternatives for result in results]
        pairs = [None if own is None else [list(each) for each in own] for own in found]
        each.append(("alternatives", arrow.list_(pair), pairs))
    for name, kind, values in each:
        columns[name] = arrow.list_(kind), [_first(value) for value in values]
        if several:
            columns[f"sequences_{name}"] = arrow.list_(arrow.list_(kind)), values
    return columns


def _segments(result: InputResult) -> list[dict[str, Any]] | None:
    if result.segments is None:
        return None
    names = ("start", "end", "text", "tokens")
    return [{name: record[name] for name in names} for record in segment_records(result.segments)]


def _first(values: Sequence[Any] | None) -> Any:
    return values[0] if values else None


def _finite(scores: list[float] | None) -> list[float | None] | None:
    """Return the scores, with None for infinity, as in JSON."""
    return None if scores is None else [score if math.isfinite(score) else None for score in scores]
