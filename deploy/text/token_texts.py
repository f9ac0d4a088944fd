"""The text of each token by itself, as stop strings are found in it.

Source: transformers 5.24 `StopStringCriteria.clean_tokenizer_vocab`. A token is decoded behind the text "abcdef", which
is then cut off, so that it keeps the space that it begins with. A tokenizer of bytes gives a token's bytes, which may
be parts of characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from tightbeam.deploy.errors import GenerationError

__all__ = ["PREFIX", "NamedTokens", "decoder_types"]

PREFIX = "abcdef"
BYTE = re.compile("<0x([0-9a-fA-F]{2})>")
PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
"""Bytes that a byte-level tokenizer writes as the character of the same number."""


class NamedTokens:
    """The `TokenTexts` of a tokenizer, made from its names of tokens. Each text is made once.

    Parameters
    ----------
    name_of : function
        Takes a token; returns its name in the vocabulary, or None.
    join : function
        Takes names of tokens; returns their text.
    prefix : sequence of str
        The names of the tokens of `PREFIX`.
    decoder : set of str
        The types of the tokenizer's decoder.

    Raises
    ------
    GenerationError
        The tokenizer cannot write `PREFIX`, as transformers does with it.
    """

    def __init__(
        self,
        name_of: Callable[[int], str | None],
        join: Callable[[list[str]], str],
        prefix: Sequence[str],
        decoder: frozenset[str],
    ) -> None:
        self._name_of, self._join, self._prefix = name_of, join, list(prefix)
        self._byte_tokens = "ByteFallback" in decoder
        self._byte_level = "ByteLevel" in decoder and not self._byte_tokens
        self._texts: dict[int, bytes | None] = {}
        if not self._byte_level and PREFIX not in join(self._prefix):
            problem = f"stop_strings need a tokenizer that can write {PREFIX!r}, and this one cannot"
            raise GenerationError(problem, fix="leave them out, or pass eos_token_id")

    @property
    def by_bytes(self) -> bool:
        """True if a token may hold a part of a character."""
        return self._byte_level or self._byte_tokens

    def of(self, token: int) -> bytes | None:
        """Return the text of a token in UTF-8; None for a token that the tokenizer lacks. Raises BundleError."""
        if token not in self._texts:
            name = self._name_of(token)
            self._texts[token] = None if name is None else self._text(name)
        return self._texts[token]

    def _text(self, name: str) -> bytes:
        table = _bytes_of_characters()
        if self._byte_level and all(character in table for character in name):
            return bytes(table[character] for character in name)
        if self._byte_tokens and (found := BYTE.fullmatch(name)):
            return bytes([int(found[1], 16)])
        _, _, text = self._join([*self._prefix, name]).partition(PREFIX)
        return text.encode("utf-8", "surrogatepass")


def decoder_types(decoder: Any) -> frozenset[str]:
    """Return the types of a decoder of the tokenizers library, given as JSON, and of its parts."""
    parts = decoder.values() if isinstance(decoder, Mapping) else decoder if isinstance(decoder, list) else ()
    own = {decoder["type"]} if isinstance(decoder, Mapping) and isinstance(decoder.get("type"), str) else set()
    return frozenset(own).union(*map(decoder_types, parts))


@cache
def _bytes_of_characters() -> Mapping[str, int]:
    """The byte that each character of a byte-level tokenizer stands for: bytes that cannot be printed are written as
    the characters from 256 on, in their order."""
    others = (byte for byte in range(256) if byte not in PRINTABLE)
    return {chr(byte): byte for byte in PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(others)}
