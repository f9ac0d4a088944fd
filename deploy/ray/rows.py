"""Generation for rows of a table. A row that cannot be run gets an error; the other rows get their results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tightbeam.deploy.inputs.lines import LineFormat, run_lines
from tightbeam.deploy.inputs.result import InputResult
from tightbeam.deploy.model.model import Model
from tightbeam.deploy.text.truncation import Truncation

__all__ = ["RowSettings", "lines_of_values", "run_rows"]


@dataclass(frozen=True)
class RowSettings:
    """Settings that all rows share.

    Attributes
    ----------
    generation : mapping
        Arguments of ``model.generate``.
    ids : bool
        Rows are lists of token ids, in place of texts.
    truncate : bool or str
        Cut texts that are longer than the model's positions: True at the model's usual side, or "left" or "right".
    batch_size : int
        The most rows of a table that run together.
    max_rows : int or None
        The most rows of the decoder (rows of a table x beams) that run together, in place of ``batch_size``.
    field : str or None
        The field that holds a row's own settings; by default these are all fields but the text.
    """

    generation: Mapping[str, Any] = field(default_factory=dict)
    ids: bool = False
    truncate: Truncation = False
    batch_size: int = 8
    max_rows: int | None = None
    field: str | None = None


def lines_of_values(columns: Mapping[str, Sequence[object]]) -> list[bytes]:
    """Return rows as lines for `run_rows`: JSON objects with a field for each column."""
    return [
        json.dumps(dict(zip(columns, row, strict=True)), default=_typed).encode()
        for row in zip(*columns.values(), strict=True)
    ]


def _typed(value: object) -> dict[str, str]:
    """Replace a value that JSON has no type for, such as a date, by an object, which is invalid as text and setting."""
    return {type(value).__name__: str(value)}


def run_rows(
    model: Model, lines: Sequence[bytes], settings: RowSettings, *, name: str | None, first: int = 1
) -> list[InputResult]:
    """Generate for every row.

    Parameters
    ----------
    model
        The loaded model.
    lines
        Texts, or lists of token ids as JSON; or JSON objects that have one of these in the field ``name``, and settings
        of the row alone in other fields.
    settings
    name
        The field of the text; None if lines are not objects.
    first
        Number of the first row in its file.

    Returns
    -------
    list of InputResult
        One for each row, in their order.

    Raises
    ------
    BundleError
        The GPU failed, so no other row can run.
    """
    how: dict[str, Any] = {"batch_size": settings.batch_size, "max_rows": settings.max_rows, "first": first}
    line_format = LineFormat(settings.ids, name, settings.truncate, settings.field)
    return list(run_lines(model, lines, line_format, settings=settings.generation, **how))
