"""The setting ``stop_strings``: a sequence ends with the token that completes one of some texts.

Source: transformers 5.24 `StopStringCriteria`. A text counts if it ends within the newest token's text. It may begin
within any token before it, of the prompt too, and the newest token may go on behind it. As many tokens are looked at as
the longest text has characters, or bytes for a tokenizer of bytes.
"""

from __future__ import annotations

import numpy as np

from tightbeam.deploy.arrays import Bools, Ints
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.settings_cache import SettingsCache
from tightbeam.deploy.generation.stop_strings import StopStrings
from tightbeam.deploy.search.endings._ending import Ending

__all__ = ["stop_strings"]


class StopStringEnding(Ending):
    """Texts that end a sequence."""

    reason = "stop_string"
    by_row = True

    def __init__(self, stop: StopStrings) -> None:
        assert stop.texts is not None
        self._texts = stop.texts
        self._ends = [text.encode() for text in stop.strings]
        self._longest = max(map(len, self._ends))
        self._tokens = self._longest if stop.texts.by_bytes else max(map(len, stop.strings))
        self._known = bytearray()  # by token: 1 or 2 for one that cannot or may complete a text, 0 for an unknown one

    def ends(self, history: Ints, rows: Ints, tokens: Ints) -> Bools:
        found, tails = np.zeros(len(tokens), np.bool_), dict[int, bytes]()
        for place, (row, token) in enumerate(zip(rows.tolist(), tokens.tolist(), strict=True)):
            if not self._completes(token):
                continue
            if row not in tails:
                tails[row] = self._tail(history[row])
            before, text = tails[row], self._texts.of(token) or b""
            whole = before + text
            found[place] = any(whole.find(end, max(0, len(before) - len(end) + 1)) >= 0 for end in self._ends)
        return found

    def _completes(self, token: int) -> bool:
        """True if a token's text holds the end of one of the texts, whatever is before it."""
        if token >= len(self._known):
            self._known.extend(bytes(token + 1 - len(self._known)))
        if not self._known[token]:
            text = self._texts.of(token) or b""
            self._known[token] = 1 + any(
                end in text or any(text.startswith(end[-size:]) for size in range(1, min(len(end), len(text)) + 1))
                for end in self._ends
            )
        return self._known[token] == 2

    def _tail(self, row: Ints) -> bytes:
        """The text at the end of a row int64 [T], as far as one of the texts may begin in it."""
        parts: list[bytes] = []
        length = 0
        for token in row[::-1][: self._tokens - 1].tolist():
            text = self._texts.of(token)
            if text is None or length >= self._longest:
                break
            parts.append(text)
            length += len(text)
        return b"".join(reversed(parts))


@SettingsCache
def _of(stop: StopStrings) -> StopStringEnding:
    return StopStringEnding(stop)


def stop_strings(options: GenerationOptions) -> Ending | None:
    """The ending of ``stop_strings``: the same object for equal texts and tokenizers."""
    return None if options.stop_strings is None else _of(options.stop_strings)
