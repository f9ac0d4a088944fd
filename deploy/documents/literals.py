"""Parts of a text that a translation has to leave as they are: placeholders, addresses and numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

__all__ = ["has_words", "literals_in", "missing_numbers", "missing_parts"]

_LITERAL = re.compile(
    r"""
    \{\{[^{}\n]{0,200}\}\}                                          # {{x}}
    | \$\{[^{}\n]{0,200}\}                                          # ${x}
    | \{[^{}\s]{0,200}\}                                            # {name}, {0:.2f}
    | %\([^()\n]{1,100}\)[-\#0+]{0,4}\d{0,9}(?:\.\d{1,9})?[a-zA-Z]  # %(name)d
    | %(?:\d{1,3}\$)?[-\#0+]{0,4}\d{0,9}(?:\.\d{1,9})?l{0,2}[diouxXeEfFgGcrsa@](?![^\W_])  # %s, %5.2f, %1$s
    | (?<![^\W_])(?:https?|ftp)://[^\s<>"']{1,2000}[^\s<>"'.,;:!?)\]}»”\u2019]
    | (?<![^\W_])www\.[^\s<>"']{1,2000}[^\s<>"'.,;:!?)\]}»”\u2019]
    | (?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}   # e-mail
    """,
    re.VERBOSE,
)
_NUMBER = re.compile(r"\d{1,3}(?:[ .,\u2019'\u00a0\u202f]\d{3})+(?!\d)|\d+")


def literals_in(text: str) -> list[tuple[int, int]]:
    """Return the places of placeholders, URLs and e-mail addresses, from and to which characters."""
    return [match.span() for match in _LITERAL.finditer(text)]


def missing_parts(parts: Iterable[str], translation: str) -> list[str]:
    """Return the parts that a translation has less often than the source, each once."""
    return [part for part, count in Counter(parts).items() if translation.count(part) < count]


def missing_numbers(source: str, translation: str) -> list[str]:
    """Return the numbers of a source that its translation lacks, whatever separates their thousands."""
    left = Counter(map(_digits, _NUMBER.findall(translation)))
    left.subtract(_digits(number) for number in _NUMBER.findall(source))
    gone = {digits for digits, count in left.items() if count < 0}
    return [number for number in dict.fromkeys(_NUMBER.findall(source)) if _digits(number) in gone]


def has_words(text: str) -> bool:
    """True for a text with a letter outside of its literals."""
    return any(map(str.isalpha, _LITERAL.sub(" ", text)))


def _digits(number: str) -> str:
    return "".join(str(int(sign)) for sign in number if sign.isdecimal())
