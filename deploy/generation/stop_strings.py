"""The setting ``stop_strings``: texts that end a sequence, and the tokens' texts that they are found in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["StopStrings", "TokenTexts"]


class TokenTexts(Protocol):
    """The texts of a tokenizer's tokens, as stop strings are found in them."""

    @property
    def by_bytes(self) -> bool:
        """True if a token may hold a part of a character."""
        ...

    def of(self, token: int) -> bytes | None:
        """Return the text of a token in UTF-8; None for a token that the tokenizer lacks. Raises BundleError."""
        ...


@dataclass(frozen=True)
class StopStrings:
    """Texts, each of which ends a sequence.

    Attributes
    ----------
    strings : tuple of str
    texts : TokenTexts or None
        The texts of the model's tokens; None before the model is known.
    """

    strings: tuple[str, ...]
    texts: TokenTexts | None = None
