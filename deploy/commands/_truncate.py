"""``--truncate`` of ``run-model``: an option whose value, a side, may be left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.text.truncation import Truncation, checked_truncation

__all__ = ["TruncateCommand", "truncation_of"]

OPTION, SIDES, USUAL = "--truncate", ("left", "right"), "auto"


class TruncateCommand(TyperCommand):
    """Command that takes ``--truncate`` alone, ``--truncate left`` and ``--truncate=left``.

    The parser of options knows options with a value and options without. So ``--truncate`` gets the value "auto" unless
    a side follows, and the file in ``--truncate FILE`` stays a file.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line."""
        return super().parse_args(ctx, _with_values(args))


def _with_values(words: Sequence[str]) -> list[str]:
    """Give each ``--truncate`` without a side the value that says so; words after ``--`` are files."""
    options = words[: words.index("--")] if "--" in words else words
    found: list[str] = []
    for place, word in enumerate(options):
        alone = word == OPTION and (place + 1 == len(options) or options[place + 1] not in SIDES)
        found.append(f"{OPTION}={USUAL}" if alone else word)
    return [*found, *words[len(options) :]]


def truncation_of(value: str | None) -> Truncation:
    """Return the truncation that a value of the option asks for. Raises InputError."""
    if value is None or value == USUAL:
        return value is not None
    if value not in SIDES:
        raise InputError(f"{OPTION}={value} is not a side; pass {OPTION} left or right, or {OPTION} alone")
    return checked_truncation(value)
