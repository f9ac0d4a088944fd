"""Rules of a tokenizer's decoder: the changes that further tokens may make at the end of a text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PLAIN", "DecoderRules", "rules_of_decoder"]


@dataclass(frozen=True)
class DecoderRules:
    """The end of a text that the next tokens may still change.

    In every decoder the replacement characters at the end may become the character whose last bytes follow.

    Attributes
    ----------
    at_end : bool
        The whole text may change, so it is known with the last token only.
    last_token : bool
        The text of the last token may change when another follows. False if the text of a token never changes.
    spaces : bool
        Spaces at the end are left out while nothing follows them.
    reach : int
        A space may be removed because of this many characters behind it.
    byte_tokens : frozenset of int
        Tokens of one byte each. A run of them is text only if all its bytes together are UTF-8, so it is known behind
        its last token.
    is_hidden : function
        Returns True for a token that has no text.
    """

    at_end: bool = False
    last_token: bool = False
    spaces: bool = False
    reach: int = 0
    byte_tokens: frozenset[int] = frozenset()
    is_hidden: Callable[[int], bool] = lambda token: False

    def settled(self, before: str, text: str) -> int:
        """Return how many characters of a text no later token changes.

        Parameters
        ----------
        before : str
            The text without its last token. If that is the same, the token has no text, and nothing is settled by it.
        text : str
        """
        if self.last_token and before == text:
            return 0
        settled = len(os.path.commonprefix([before, text])) if self.last_token else len(text)  # noqa: RUF071
        settled = len(text[:settled].rstrip("\N{REPLACEMENT CHARACTER}"))
        if self.spaces:
            settled = len(text[:settled].rstrip())
        if self.reach:
            near = text.find(" ", max(0, settled - self.reach), settled)
            settled = settled if near < 0 else near
        return settled


PLAIN = DecoderRules()
"""The rules of a decoder in which no token changes the text before it."""


def rules_of_decoder(
    decoder: Mapping[str, Any] | None, byte_tokens: frozenset[int], is_hidden: Callable[[int], bool]
) -> DecoderRules:
    """Return the rules of a decoder of the tokenizers library.

    Each decoder of a sequence takes the texts of the tokens, and returns texts. The ones that are known here treat a
    token by itself, or join all texts. Behind such a join, only characters at the beginning may be removed.

    Parameters
    ----------
    decoder : mapping or None
        The field "decoder" of ``tokenizer.json``.
    byte_tokens : frozenset of int
        The tokens <0x00> to <0xFF>.
    is_hidden : function
        Returns True for a token that is left out before the decoder.
    """
    joined = last_token = byte_fallback = False
    for each in [] if decoder is None else _parts(decoder):
        kind = each.get("type")
        if kind in ("ByteLevel", "Fuse"):
            known, joins = not joined or kind == "Fuse", True
        else:
            joins = False
            known = {
                "Replace": not joined,
                "ByteFallback": not joined,
                "BPEDecoder": not joined,
                "WordPiece": not joined,
                "Metaspace": not joined,
                "Strip": not joined or not each.get("stop"),
            }.get(str(kind), False)
        if not known:
            return DecoderRules(at_end=True)
        joined |= joins
        last_token |= kind == "BPEDecoder"
        byte_fallback |= kind == "ByteFallback"
    return DecoderRules(
        last_token=last_token, byte_tokens=byte_tokens if byte_fallback else frozenset(), is_hidden=is_hidden
    )


def _parts(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the decoders of a sequence, in their order."""
    if decoder.get("type") != "Sequence":
        yield decoder
        return
    for each in decoder.get("decoders", []):
        yield from _parts(each)
