"""Newlines in lines: how a text of several lines is written as one, and how such a line is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

from tightbeam.deploy.errors import InputError

__all__ = ["Newlines", "escaped", "kept", "spaced", "unescaped"]

Newlines: TypeAlias = Callable[[str], str]
"""Makes what is written of a text: `escaped`, `kept` or `spaced`."""
WRITTEN = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
READ = {"\\": "\\", "n": "\n", "r": "\r", "t": "\t"}


def escaped(text: str) -> str:
    r"""Return a text as one line that loses nothing: a newline as ``\n``, a carriage return as ``\r``, and ``\`` as
    ``\\``. `unescaped` reads it."""
    return re.sub(r"[\\\n\r]", lambda found: WRITTEN[found[0]], text)


def kept(text: str) -> str:
    """Return a text as it is."""
    return text


def spaced(text: str) -> str:
    """Return a text as one line, with spaces in place of line breaks."""
    return " ".join(text.splitlines())


def unescaped(line: str) -> str:
    r"""Return the text of a line with the escapes ``\n``, ``\r``, ``\t`` and ``\\``. Raises InputError for others."""

    def read(found: re.Match[str]) -> str:
        if found[1] not in READ:
            raise InputError(rf"{found[0]} is not an escape; expected \n, \r, \t, or \\ for a backslash")
        return READ[found[1]]

    return re.sub(r"\\(.?)", read, line, flags=re.DOTALL)
