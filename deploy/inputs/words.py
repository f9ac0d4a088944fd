"""Grouping of tokens into words, with the times and the probability of each word.

Source: transformers 5.24 `_combine_tokens_into_words` and `_decode_asr` of Whisper's tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tightbeam.deploy.audio.segments import TokenTime
from tightbeam.deploy.inputs.output import TextWord

__all__ = ["group_words", "words_of"]

WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages without spaces between words: each character is a word."""
BEFORE = "\"'“¡¿([{-"
"""Punctuation that belongs to the word after it."""
AFTER = "\"'.。,，!！?？:：”)]}、"  # noqa: RUF001  # full-width forms too
"""Punctuation that belongs to the word before it."""
ASCII_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
HALF = "\N{REPLACEMENT CHARACTER}"
"""Decoded form of a character whose bytes are split between tokens."""

Decode = Callable[[Sequence[int]], str]


@dataclass
class _Word:
    """The text of a word, and the indices of its tokens."""

    text: str
    indices: list[int]

    def join(self, other: _Word) -> None:
        """Append the other word, which becomes empty."""
        self.text, self.indices = self.text + other.text, self.indices + other.indices
        other.text, other.indices = "", []


def words_of(tokens: Sequence[TokenTime], start_s: float, decode: Decode, language: str | None) -> list[TextWord]:
    """Join the tokens of a segment into words.

    Parameters
    ----------
    tokens : sequence of TokenTime
        The tokens of the segment, in order. Tokens without text, such as timestamps, are in no word.
    start_s : float
        Time at which the first token begins, which is the end of the token before it.
    decode : function
        Function from token ids to text, without special tokens.
    language : str or None
        The code of the language, such as "en"; None for one with spaces.

    Returns
    -------
    list of TextWord
        A word has the start of its first token, the end of its last one, and the mean of their probabilities.
    """
    starts = [start_s, *(each.end_s for each in tokens)]
    places = [place for place, each in enumerate(tokens) if decode([each.token])]
    words = []
    for text, indices in group_words([tokens[place].token for place in places], decode, language):
        own = [places[index] for index in indices]
        probability = float(np.mean([tokens[place].probability for place in own]))
        words.append(TextWord(text, round(starts[own[0]], 2), round(tokens[own[-1]].end_s, 2), probability))
    return words


def group_words(tokens: Sequence[int], decode: Decode, language: str | None) -> list[tuple[str, list[int]]]:
    """Group tokens by word.

    Parameters
    ----------
    tokens : sequence of int
    decode, language
        Arguments of `words_of`.

    Returns
    -------
    list of (str, list of int)
        The text of each word, with the space before it, and the indices of its tokens.
    """
    words = _characters(tokens, decode)
    if language not in WITHOUT_SPACES:
        words = _by_spaces(words)
    _join_punctuation(words)
    return [(word.text, word.indices) for word in words if word.indices]


def _characters(tokens: Sequence[int], decode: Decode) -> list[_Word]:
    """Group tokens so that each group decodes to whole characters."""
    whole, begun, length = decode(tokens), list[int](), 0
    found = []
    for index in range(len(tokens)):
        begun.append(index)
        text = decode([tokens[each] for each in begun])
        half = length + text.index(HALF) if HALF in text else len(whole)
        if half >= len(whole) or whole[half] == HALF:  # else its other bytes follow
            found.append(_Word(text, begun))
            begun, length = [], length + len(text)
    return found


def _by_spaces(parts: Sequence[_Word]) -> list[_Word]:
    """Join a part to the part before it, unless it begins with a space or is punctuation."""
    words: list[_Word] = []
    for part in parts:
        if not words or part.text.startswith(" ") or part.text.strip() in ASCII_PUNCTUATION:
            words.append(part)
        else:
            words[-1].join(part)
    return words


def _join_punctuation(words: list[_Word]) -> None:
    """Join punctuation to the words after it and before it, in place; joined words become empty."""
    following = len(words) - 1
    for index in range(len(words) - 2, -1, -1):
        word = words[index]
        if word.text.startswith(" ") and word.text.strip() in BEFORE:
            word.join(words[following])
            words[following], words[index] = word, words[following]
        else:
            following = index
    preceding = 0
    for index in range(1, len(words)):
        if not words[preceding].text.endswith(" ") and words[index].text in AFTER:
            words[preceding].join(words[index])
        else:
            preceding = index
