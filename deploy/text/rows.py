"""Rows of token ids of different lengths, in place of an array."""

from __future__ import annotations

from typing import Any

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.text.token_ids import other_than_integers

__all__ = ["beginnings_of", "ragged_rows"]


def ragged_rows(input_ids: Any) -> list[list[int]] | None:
    """Read a list of rows of different lengths.

    Parameters
    ----------
    input_ids
        The argument of `Runner.generate`.

    Returns
    -------
    list of list of int, or None
        None unless the argument is a list of rows of different lengths.

    Raises
    ------
    InputError
        A row is empty, or holds other values than integers.
    """
    if not isinstance(input_ids, list | tuple):
        return None
    rows = [row.tolist() if getattr(row, "ndim", 0) == 1 else row for row in input_ids]  # arrays and tensors
    if not all(isinstance(row, list | tuple) for row in rows) or len({len(row) for row in rows}) < 2:
        return None
    for index, row in enumerate(rows):
        if (wrong := other_than_integers(row)) or not len(row):
            held = f"holds {type(wrong[0]).__name__}" if wrong else "is empty"
            raise InputError(f"row {index} of input_ids {held}, expected integers; pass a row of token ids a sample")
    return [[int(token) for token in row] for row in rows]


def beginnings_of(decoder_input_ids: Any, count: int) -> list[list[Any]]:
    """Read the tokens that the output of each of ``count`` samples begins with. Raises InputError."""
    rows = decoder_input_ids.tolist() if hasattr(decoder_input_ids, "tolist") else decoder_input_ids
    fix = "pass a row of token ids for each row of input_ids"
    if not isinstance(rows, list | tuple):
        raise InputError(f"decoder_input_ids is {type(rows).__name__}, expected {count} rows of token ids; {fix}")
    if len(rows) != count:
        raise InputError(f"decoder_input_ids has {len(rows)} rows, expected {count}; {fix}")
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
    for index, row in enumerate(rows):
        if not isinstance(row, list | tuple):
            raise InputError(f"row {index} of decoder_input_ids is {type(row).__name__}, expected token ids; {fix}")
    return [list(row) for row in rows]
