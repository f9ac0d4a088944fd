"""Incremental detokenizer: a piece of text for each new token; joined, the pieces are the text of all tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["IncrementalDetokenizer"]

HALF = "\N{REPLACEMENT CHARACTER}"
"""Decoded form of a character whose last bytes are in the next token."""


class IncrementalDetokenizer:
    """The growing text of one row.

    Parameters
    ----------
    decode
        Function from a row's token ids to its text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._sent = ""

    def add(self, token: int) -> str:
        """Add a token, and return the text that it adds; empty while that text may still change.

        A tokenizer may also take back text that was returned, such as a space before a full stop. Then the method
        returns empty text until the row's text begins with all returned text again, which may never happen. The text of
        the whole row is the result that counts.
        """
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if text.endswith(HALF) or not text.startswith(self._sent):
            return ""
        piece, self._sent = text[len(self._sent) :], text
        return piece
