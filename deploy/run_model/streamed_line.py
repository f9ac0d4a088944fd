"""A line of results that is written in pieces."""

from __future__ import annotations

from tightbeam.deploy.inputs.newlines import Newlines

__all__ = ["StreamedLine"]

BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""The characters at which `str.splitlines` breaks a line."""


class StreamedLine:
    """The pieces of a line that begins with a text.

    Parameters
    ----------
    newlines : Newlines
        Writes the text.
    prefix : str
        What stands before the text.
    """

    def __init__(self, newlines: Newlines, prefix: str) -> None:
        self._newlines, self._prefix = newlines, prefix
        self._kept = ""  # line breaks at the end, which may be written in another way behind more text
        self._written = 0

    def add(self, piece: str) -> str:
        """Return what is written for a piece of the text."""
        text = self._kept + piece
        certain = text.rstrip(BREAKS)
        self._kept = text[len(certain) :]
        shown = self._newlines(certain)
        if not self._written:
            shown = self._prefix + shown
        self._written += len(shown)
        return shown

    def rest(self, line: str) -> str:
        """Return what is left to write of the whole line."""
        return line[self._written :]
