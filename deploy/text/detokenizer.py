"""Incremental detokenizer: a piece of text for each new token; joined, the pieces are the text of all tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

from tightbeam.deploy.text.decoder_rules import PLAIN, DecoderRules

__all__ = ["HALF", "IncrementalDetokenizer", "RemovedText", "StrippedText", "TextFilter"]

HALF = "\N{REPLACEMENT CHARACTER}"
"""Decoded form of a character whose last bytes are in the next token."""
CONTEXT = 16
"""Tokens that a window begins with. It is made shorter when it has three times as many."""
TRIES = 8
"""The most beginnings of a shorter window that are tried."""


class TextFilter(Protocol):
    """A change of a text that comes in pieces."""

    def add(self, piece: str) -> str:
        """Return the text that a piece adds. It may hold back what the next piece decides on."""
        ...


class StrippedText:
    """The filter that removes whitespace at both ends of a text."""

    def __init__(self) -> None:
        self._kept, self._begun = "", False

    def add(self, piece: str) -> str:
        """Return the text that a piece adds."""
        text = self._kept + piece if self._begun else piece.lstrip()
        certain = text.rstrip()
        self._kept, self._begun = text[len(certain) :], self._begun or bool(certain)
        return certain


class RemovedText:
    """The filter that removes the matches of a pattern.

    Parameters
    ----------
    pattern : re.Pattern
        What is removed.
    begun : re.Pattern
        Matches, at the end of a text, the beginning of a match of ``pattern``.
    """

    def __init__(self, pattern: re.Pattern[str], begun: re.Pattern[str]) -> None:
        self._pattern, self._begun, self._kept = pattern, begun, ""

    def add(self, piece: str) -> str:
        """Return the text that a piece adds."""
        text = self._kept + piece
        begun = self._begun.search(text)
        place = len(text) if begun is None else begun.start()
        self._kept = text[place:]
        return self._pattern.sub("", text[:place])


class IncrementalDetokenizer:
    """The growing text of one row.

    A piece is returned as soon as no later token can change it, so that the pieces and `rest` join to the text of all
    tokens. A token is decoded together with a bounded number of tokens before it. The window of these tokens moves to
    where the text of the shorter window is the end of the longer one's.

    Parameters
    ----------
    decode : function
        Takes token ids, and returns their text.
    rules : DecoderRules
        What later tokens may change. By default a token never changes the text before it, but for characters whose
        last bytes follow.
    filters : sequence of TextFilter
        What is done to the text, in this order.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        rules: DecoderRules = PLAIN,
        filters: Sequence[TextFilter] = (),
    ) -> None:
        self._decode, self._rules, self._filters = decode, rules, filters
        self._window: list[int] = []
        self._text = ""  # of the window, when it was decoded last
        self._sent = 0  # characters of it that were returned
        self._longest = 3 * CONTEXT
        self._pieces: list[str] = []

    def add(self, token: int) -> str:
        """Add a token, and return the text that is certain now; empty while it may still change."""
        rules = self._rules
        if rules.at_end or rules.is_hidden(token):
            return ""
        self._window.append(token)
        if token in rules.byte_tokens:
            return ""
        before, self._text = self._text, self._decode(self._window)
        settled = max(self._sent, rules.settled(before, self._text))
        piece, self._sent = self._text[self._sent : settled], settled
        if len(self._window) > self._longest:
            self._shorten()
        for each in self._filters:
            piece = each.add(piece)
        self._pieces.append(piece)
        return piece

    def rest(self, text: str) -> str:
        """Return the last piece, given the whole text. Empty if the tokenizer took back text that was certain, which no
        decoder is known to do; then the whole text is the result that counts."""
        sent = "".join(self._pieces)
        return text[len(sent) :] if text.startswith(sent) else ""

    def _shorten(self) -> None:
        """Let the window begin later, if its text then is the end of the present one."""
        middle = len(self._window) - CONTEXT
        for first in range(middle, max(0, middle - TRIES), -1):
            if self._window[first] in self._rules.byte_tokens:  # perhaps within a run
                continue
            text = self._decode(self._window[first:])
            cut = len(self._text) - len(text)
            if text.strip(f"{HALF} \n") and 0 <= cut <= self._sent and self._text.endswith(text):
                self._window, self._text, self._sent = self._window[first:], text, self._sent - cut
                self._longest = 3 * CONTEXT
                return
        self._longest = len(self._window) + CONTEXT
