"""Scripts that are written without spaces between words."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

__all__ = ["UNSPACED", "is_unspaced", "join_texts"]

UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
"""Scripts, as the names of their letters begin, in which no space parts a word from the next one."""
WIDE = ("IDEOGRAPHIC", "FULLWIDTH")
"""Beginnings of the names of their punctuation."""


def join_texts(texts: Iterable[str]) -> str:
    """Join texts, without the spaces around them.

    Between two texts there is one space, or none if the sign before or behind it is of a script without spaces between
    words, or of its punctuation. Empty texts are left out.
    """
    joined = ""
    for text in filter(None, map(str.strip, texts)):
        between = "" if not joined or is_unspaced(joined[-1]) or is_unspaced(text[0]) else " "
        joined += between + text
    return joined


def is_unspaced(sign: str) -> bool:
    """Return True for a sign of a script without spaces between words, or of its punctuation."""
    return unicodedata.name(sign, "").startswith((*UNSPACED, *WIDE))
