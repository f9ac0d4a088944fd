"""Errors that any part of deploy may raise, and the one-line form of a library's own."""

from __future__ import annotations

__all__ = ["InputError", "first_line"]


class InputError(ValueError):
    """An input that cannot be run; the message says what was wrong, what was expected, and the fix."""


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or the name of its class where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
