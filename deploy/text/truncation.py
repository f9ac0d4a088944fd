"""Truncation of a text that is longer than the model's positions: which end of it is cut off."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, cast

from tightbeam.deploy.errors import InputError

__all__ = ["Side", "Truncation", "checked_truncation", "truncation_side"]

Side: TypeAlias = Literal["left", "right"]
"""The end that is cut off; transformers' ``truncation_side``."""
Truncation: TypeAlias = bool | Side
"""A caller's ``truncate``: False for an error, True for the usual side of the model, or a side."""


def checked_truncation(given: Any) -> Truncation:
    """Return a caller's ``truncate``. Raises InputError if it is something else."""
    if isinstance(given, bool) or (isinstance(given, str) and given in ("left", "right")):
        return cast(Truncation, given)
    raise InputError(field="truncate", value=given, expected="true, false, left or right", fix="pass one of them")


def truncation_side(truncate: Truncation, *, decoder_only: bool) -> Side | None:
    """Return the side that is cut; None if nothing may be cut.

    By default a prompt loses its beginning, since the new tokens continue its end, and a source loses its end.

    Parameters
    ----------
    truncate
        A caller's ``truncate``.
    decoder_only
        True for a decoder-only model.
    """
    if isinstance(truncate, str):
        return truncate
    return ("left" if decoder_only else "right") if truncate else None
