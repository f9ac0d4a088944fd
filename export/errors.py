"""The exception of the build side, and what it quotes of other libraries' exceptions."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["ExportError", "InexactError", "causes", "first_line"]

LONGEST_REASON = 300
"""Characters of another library's message that an error quotes."""


class ExportError(ValueError):
    """A checkpoint, an option or an output folder that cannot be exported.

    The command prints the message as it is.

    Parameters
    ----------
    message : str
        What was wrong, what was expected, the fix; line breaks in it become spaces.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class InexactError(ExportError):
    """A form that a guard refuses, since it is not exact enough for the checkpoint."""


def first_line(error: BaseException) -> str:
    """An exception's class and the first line of its message that holds text, such as ``KeyError: 'shape'``."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:LONGEST_REASON]}" if lines else type(error).__name__


def causes(error: BaseException) -> Iterator[BaseException]:
    """An exception, then its causes, the original one last."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
