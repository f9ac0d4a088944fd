"""Results as columns of an Arrow table. The types are the same for every table, whatever its rows hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tightbeam.deploy.ray.library import optional_library
from tightbeam.deploy.text.input_result import InputResult

__all__ = ["with_results"]


def with_results(table: Any, results: Sequence[InputResult], prefix: str = "") -> Any:
    """Append the columns of results to a table.

    Parameters
    ----------
    table : pyarrow.Table
        The rows.
    results : sequence of InputResult
        One for each row.
    prefix : str
        Beginning of the new columns' names.

    Returns
    -------
    pyarrow.Table
        With ``text`` (string), ``score`` (float), ``tokens`` (list of int), ``error`` (string) and ``truncated`` (bool)
        behind the table's columns; where several sequences are returned ``texts``, ``scores`` and ``sequences`` too.
    """
    arrow = optional_library("pyarrow")
    text, score, tokens = arrow.string(), arrow.float32(), arrow.list_(arrow.int64())
    columns: dict[str, tuple[Any, list[Any]]] = {
        "text": (text, [_first(result.texts) for result in results]),
        "score": (score, [_first(_finite(result.scores)) for result in results]),
        "tokens": (tokens, [_first(result.sequences) for result in results]),
        "error": (text, [result.error for result in results]),
        "truncated": (arrow.bool_(), [result.cut > 0 for result in results]),
    }
    if any(result.returned > 1 for result in results):
        columns["texts"] = arrow.list_(text), [result.texts for result in results]
        columns["scores"] = arrow.list_(score), [_finite(result.scores) for result in results]
        columns["sequences"] = arrow.list_(tokens), [result.sequences or None for result in results]
    for name, (kind, values) in columns.items():
        table = table.append_column(prefix + name, arrow.array(values, kind))
    return table


def _first(values: Sequence[Any] | None) -> Any:
    return values[0] if values else None


def _finite(scores: list[float] | None) -> list[float | None] | None:
    """The scores; None for infinity, as in JSON."""
    return None if scores is None else [score if math.isfinite(score) else None for score in scores]
