"""Tokens as they come -> pieces of text, which joined are the text of all tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["IncrementalDetokenizer"]

HALF = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer writes for the first bytes of a character whose other bytes are in the next token."""


class IncrementalDetokenizer:
    """The text of one row while it grows. ``decode``: the text of a row of tokens."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._said = ""

    def add(self, token: int) -> str:
        """What this token adds to the text; nothing while it may still change.

        A tokenizer may also take back what it said (a space before a full stop). Nothing is said then until the text
        begins again with all that was said, which may never be: the text of the whole row is the one that counts."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if text.endswith(HALF) or not text.startswith(self._said):
            return ""
        piece, self._said = text[len(self._said) :], text
        return piece
