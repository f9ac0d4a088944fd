"""The types of settings' values. Each checks a value as a caller gives it, and returns it as a search takes it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np

from tightbeam.deploy.errors import Constant, Fix, GenerationError, InputError, Setting, short_repr
from tightbeam.deploy.generation.layers import CHECKPOINT
from tightbeam.deploy.generation.stop_strings import StopStrings
from tightbeam.deploy.generation.vad import VAD_BOUNDS, VadParameters
from tightbeam.deploy.tries.file import read_trie
from tightbeam.deploy.tries.trie import Trie

__all__ = [
    "Anything",
    "Choice",
    "ClipTimes",
    "Flag",
    "ForcedWords",
    "Given",
    "Integer",
    "Number",
    "Prompt",
    "StopTexts",
    "Temperatures",
    "TokenId",
    "TokenIds",
    "TokenSequences",
    "TokenTable",
    "TrieFile",
    "ValueType",
    "VoiceActivity",
    "WhisperPromptIds",
]

MOST_TEMPERATURES = 8
"""Bound on the attempts at a window of a recording."""
MOST_CLIPS = 256
"""Bound on the clips of a recording."""
MOST_ALTERNATIVES = 4096
"""Bound on the words of ``force_words_ids``: each may come next, so each costs time in every step."""

MOST_INTEGER = (1 << 31) - 1
"""Bound of an integer that has no lower one of its own."""
MOST_TOKEN_IDS = 1 << 18
"""Bound on the token ids of ``bad_words_ids`` in all; other lists are bounded by the vocabulary or the positions."""
MOST_FORCED_TOKENS = 1 << 14
"""Bound on the token ids of ``force_words_ids`` in all: a tree holds them."""
MOST_STOP_TEXTS, LONGEST_STOP_TEXT = 64, 256
"""Bounds of ``stop_strings``: each step compares them with the end of each row."""


@dataclass(slots=True)
class Given:
    """A setting as a caller gives it.

    Attributes
    ----------
    name : str
    value : object
    source : str
        The place that it is from, as errors name it.
    vocab_size : int
        Tokens that the model scores.
    positions : int
        Positions of the model's decoder.
    """

    name: str
    value: Any
    source: str
    vocab_size: int
    positions: int

    def error(self, problem: str = "", *, expected: str = "", fix: Fix | str) -> GenerationError:
        """Make an error about this setting; by default its value "is not" what was expected."""
        return GenerationError(
            problem, field=self.name, value=self.value, source=self.source, expected=expected, fix=fix
        )

    def check_count(self, count: int, most: int, what: str = "token ids") -> None:
        """Check the length of a list, or of several together, before its items are read. Raises GenerationError."""
        if count > most:
            raise self.error(f"has {count:,} {what}", fix=f"pass {most:,} or fewer")

    def token(self, token: Any) -> int:
        """Check a token id in the value. Raises GenerationError."""
        if type(token) is int and 0 <= token < self.vocab_size:
            return token
        expected = f"ids from 0 to {self.vocab_size - 1}"
        if not is_number(token, Integral):
            problem = f"holds {short_repr(token)}, which is not a token id"
            raise self.error(problem, expected=expected, fix="pass integers")
        if not 0 <= token < self.vocab_size:
            problem = f"holds {short_repr(token)}, which is outside the vocabulary"
            raise self.error(problem, expected=expected, fix=f"pass {expected}")
        return int(token)

    def tokens(self, tokens: Sequence[Any]) -> tuple[int, ...]:
        """Check token ids in the value. Raises GenerationError. No id costs a call of Python."""
        kinds: set[type] = set(map(type, tokens))
        others = {bool} & kinds | {kind for kind in kinds if not issubclass(kind, Integral)}
        if others:
            self.token(next(token for token in tokens if type(token) in others))
        for extreme in (min(tokens), max(tokens)) if tokens else ():
            self.token(extreme)
        return tuple(map(int, tokens))


class ValueType(Protocol):
    """A type of value."""

    def read(self, given: Given) -> Any:
        """Return the value as a search takes it. Raises GenerationError for a value of another type or range."""
        ...


@dataclass(frozen=True)
class Integer:
    """An integer of at least ``least``, and at most ``most``."""

    least: int
    most: int = MOST_INTEGER

    def read(self, given: Given) -> int:
        if not is_number(given.value, Integral) or given.value < self.least:
            expected = f"an integer of at least {self.least}"
            raise given.error(expected=expected, fix=f"pass {self.least} or more")
        if given.value > self.most:
            expected = f"an integer from {self.least} to {self.most}"
            raise given.error(expected=expected, fix=f"pass {self.most} or less")
        return int(given.value)


@dataclass(frozen=True)
class Number:
    """A number within ``bounds``, both included.

    Attributes
    ----------
    such_as : float
        The example of the fix.
    expected : str
        The values within the bounds, in words.
    bounds : (float, float)
    instead : Setting or None
        The setting of a caller who wants a value out of the bounds.
    """

    such_as: float
    expected: str = "a finite number"
    bounds: tuple[float, float] = (-np.finfo(np.float64).max, np.finfo(np.float64).max)
    instead: Setting | None = None

    def read(self, given: Given) -> float:
        low, high = self.bounds
        number = as_number(given.value)
        if not low <= number <= high:
            fix: Fix | str = f"pass a number such as {self.such_as}"
            if self.instead is not None:
                fix = Fix(f"{fix}, or {{}}", self.instead)
            raise given.error(expected=self.expected, fix=fix)
        return number


@dataclass(frozen=True)
class Flag:
    """True or False."""

    def read(self, given: Given) -> bool:
        if not isinstance(given.value, bool | np.bool_):
            fix = Fix("pass {} or {}", Constant(True), Constant(False))
            raise given.error("is neither true nor false", expected="true or false", fix=fix)
        return bool(given.value)


class Choice:
    """One of some values."""

    def __init__(self, *values: bool | str) -> None:
        self.values = values

    def read(self, given: Given) -> bool | str:
        for value in self.values:
            if type(given.value) is type(value) and given.value == value:
                return value
        fix = Fix(f"pass {', '.join(['{}'] * (len(self.values) - 1))} or {{}}", *map(Constant, self.values))
        raise given.error("is not a choice", expected=" or ".join(map(repr, self.values)), fix=fix)


@dataclass(frozen=True)
class Anything:
    """A value that the code that uses it checks, or that changes nothing."""

    def read(self, given: Given) -> Any:
        return given.value


@dataclass(frozen=True)
class TokenId:
    """A token id."""

    def read(self, given: Given) -> int:
        return given.token(given.value)


@dataclass(frozen=True)
class TokenIds:
    """A list of token ids; with ``may_be_one`` a single id, with ``may_be_empty`` an empty list too.

    It has at most as many ids as the vocabulary has tokens, or ``by_position`` as the model has positions.
    """

    may_be_one: bool = False
    may_be_empty: bool = False
    by_position: bool = False

    def read(self, given: Given) -> tuple[int, ...]:
        value = given.value
        if is_list(value) and (value or self.may_be_empty):
            given.check_count(len(value), given.positions if self.by_position else given.vocab_size)
            return given.tokens(value)
        if not self.may_be_one or is_list(value):
            raise given.error(expected="a list of token ids", fix="pass a list such as [17, 4]")
        return (given.token(value),)


@dataclass(frozen=True)
class TokenSequences:
    """A list of lists of token ids."""

    def read(self, given: Given) -> tuple[tuple[int, ...], ...]:
        value = given.value
        given.check_count(len(value) if is_list(value) else 0, MOST_TOKEN_IDS, "lists")
        if not is_list(value) or not value or not all(is_list(row) and row for row in value):
            raise given.error(expected="a list of lists of token ids", fix="pass a list such as [[17], [4, 8]]")
        given.check_count(sum(map(len, value)), MOST_TOKEN_IDS)
        given.tokens(list(chain.from_iterable(value)))
        return tuple(map(tuple, value))


@dataclass(frozen=True)
class StopTexts:
    """A text, or a list of texts."""

    def read(self, given: Given) -> StopStrings:
        texts = (given.value,) if isinstance(given.value, str) else given.value
        given.check_count(len(texts) if is_list(texts) else 0, MOST_STOP_TEXTS, "texts")
        if not is_list(texts) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise given.error(
                expected="a text that is not empty, or a list of them", fix='pass a list such as ["\\n", "User:"]'
            )
        if (longest := max(map(len, texts))) > LONGEST_STOP_TEXT:
            problem = f"has a text of {longest:,} characters"
            raise given.error(problem, fix=f"pass texts of {LONGEST_STOP_TEXT} or fewer")
        if not all(map(is_utf8, texts)):
            raise given.error("holds half a character (a lone surrogate), which is not UTF-8", fix="remove it")
        return StopStrings(tuple(dict.fromkeys(texts)))


@dataclass(frozen=True)
class ForcedWords:
    """A list of words, each as its tokens or as a list of alternatives.

    Source: transformers 4.56.2, the last release that has it; what it refuses is refused here.
    """

    def read(self, given: Given) -> tuple[tuple[tuple[int, ...], ...], ...]:
        value = given.value
        given.check_count(len(value) if is_list(value) else 0, MOST_ALTERNATIVES, "words and alternatives")
        words, count, tokens = [], 0, 0
        for word in self._filled(given, value):
            first = self._filled(given, word)[0]
            alternatives = word if is_list(first) and len(first) > 0 else [word]
            count += len(alternatives)
            given.check_count(count, MOST_ALTERNATIVES, "words and alternatives")
            tokens += sum(len(self._filled(given, row)) for row in alternatives)
            given.check_count(tokens, MOST_FORCED_TOKENS)
            words.append(tuple(map(given.tokens, alternatives)))
        for found in words:
            # In order, what begins with a row follows it at once.
            order = sorted(found)
            if any(after[: len(row)] == row for row, after in pairwise(order)):
                problem = "has an alternative that begins another of its word"
                raise given.error(problem, fix="leave the longer one out")
        return tuple(words)

    def _filled(self, given: Given, value: Any) -> Sequence[Any]:
        if not is_list(value) or not value:
            fix = "pass a list such as [[17, 4], [[8], [9, 3]]], for one word and one with two alternatives"
            raise given.error(expected="a list of words", fix=fix)
        found: Sequence[Any] = value
        return found


@dataclass(frozen=True)
class TrieFile:
    """A trie, or a file that holds one. A checkpoint cannot name a file."""

    def read(self, given: Given) -> Trie:
        if given.source == CHECKPOINT:
            raise given.error("names a file, which no checkpoint may", fix="remove it there")
        if not isinstance(given.value, Trie | str | os.PathLike):
            raise given.error(expected="a trie", fix="pass a file that build-trie has made")
        try:
            trie = given.value if isinstance(given.value, Trie) else read_trie(given.value)
        except InputError as error:
            raise GenerationError(str(error)) from None
        if trie.vocabulary > given.vocab_size:
            problem = f"holds token {trie.vocabulary - 1}, outside the vocabulary of {given.vocab_size}"
            raise given.error(problem, fix="build it with this model's tokenizer")
        return trie


@dataclass(frozen=True)
class Temperatures:
    """A temperature, or one for each attempt at a window; 0 takes the best tokens."""

    def read(self, given: Given) -> tuple[float, ...]:
        given.check_count(len(given.value) if is_list(given.value) else 1, MOST_TEMPERATURES, "temperatures")
        each = tuple(given.value) if is_list(given.value) else (given.value,)
        if not each or not all(is_number(one, Real) and (one == 0 or 1e-30 <= one < 1e30) for one in each):
            fix = Fix("pass 0, or one for each attempt, such as {}", Setting(given.name, (0.0, 0.2, 0.4)))
            raise given.error(expected="0, a number above 0, or a list of these", fix=fix)
        return tuple(map(float, each))


@dataclass(frozen=True)
class ClipTimes:
    """Starts and ends of clips in seconds, in a list or between commas; the end of the last one may be left out.

    Source: ``clip_timestamps`` of OpenAI's whisper and of faster-whisper.
    """

    def read(self, given: Given) -> tuple[tuple[float, float], ...]:
        value = given.value.split(",") if isinstance(given.value, str) else given.value
        times = value if is_list(value) else [value]
        given.check_count(len(times), 2 * MOST_CLIPS, "times")
        fix = Fix("pass starts and ends in order, such as {}", Setting(given.name, (60, 90.5)))
        read = [as_number(_number_of(each) if isinstance(each, str) else each) for each in times]
        if not read or not all(0 <= each < math.inf for each in read):
            raise given.error(expected="times in seconds, from 0 on", fix=fix)
        for start_s, end_s in pairwise(read):
            if end_s < start_s:
                raise given.error(f"goes back from {start_s:g} to {end_s:g} s", fix=fix)
        clips = tuple(zip(read[::2], [*read[1::2], math.inf], strict=False))
        for start_s, end_s in clips:
            if start_s == end_s:
                raise given.error(f"has a clip that ends where it starts, at {start_s:g} s", fix=fix)
        return () if clips == ((0, math.inf),) else clips


def _number_of(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@dataclass(frozen=True)
class VoiceActivity:
    """Settings of voice activity by their names, in an object or in its JSON."""

    def read(self, given: Given) -> VadParameters:
        value = given.value
        if isinstance(value, str):
            with suppress(ValueError, RecursionError):
                value = json.loads(value)
        fix = 'pass an object such as {"threshold": 0.6, "speech_pad_ms": 200}'
        if not isinstance(value, Mapping):
            raise given.error(expected="an object of settings", fix=fix)
        for name, each in value.items():
            if name not in VAD_BOUNDS:
                raise given.error(f"has no setting {short_repr(name)}", fix=f"pass some of {', '.join(VAD_BOUNDS)}")
            least, most = VAD_BOUNDS[name]
            if not least <= as_number(each) <= most:
                problem = f"has {name} {short_repr(each)}"
                raise given.error(problem, fix=f"pass a number from {least:g} to {most:g} for it")
        return VadParameters(**{name: float(each) for name, each in value.items()})


@dataclass(frozen=True)
class WhisperPromptIds:
    """Token ids in a list or an array."""

    def read(self, given: Given) -> tuple[int, ...]:
        given.check_count(np.size(given.value) if hasattr(given.value, "tolist") else 0, given.positions)
        tokens = given.value.tolist() if hasattr(given.value, "tolist") else given.value
        if not is_list(tokens):
            raise given.error(expected="a list of token ids", fix="pass those of WhisperProcessor.get_prompt_ids")
        given.check_count(len(tokens), given.positions)
        return given.tokens(tokens)


@dataclass(frozen=True)
class TokenTable:
    """Token ids by name, which a checkpoint has."""

    def read(self, given: Given) -> dict[str, int]:
        if not isinstance(given.value, dict):
            raise given.error(expected="a table of token ids", fix="restore the generation config")
        given.check_count(len(given.value), given.vocab_size)
        return {name: given.token(token) for name, token in given.value.items()}


@dataclass(frozen=True)
class Prompt:
    """The prompt in its older form: [[1, token or None], [2, token], ...]."""

    def read(self, given: Given) -> tuple[int | None, ...]:
        pairs = given.value
        given.check_count(len(pairs) if isinstance(pairs, list) else 0, given.positions, "pairs")
        whole = isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
        if not whole or [pair[0] for pair in pairs] != list(range(1, len(pairs) + 1)):
            raise given.error(expected="a prompt", fix="pass it as [[1, token], [2, token], ...]")
        return tuple(None if token is None else given.token(token) for _, token in pairs)


def is_number(value: object, kind: type) -> bool:
    """Return True for a number of that kind, numpy's included. True and False are not numbers."""
    return isinstance(value, kind) and not isinstance(value, bool)


def is_utf8(text: str) -> bool:
    """Return False for a text with half a character (a lone surrogate)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_number(value: Any) -> float:
    """Return a number as a float: NaN if it is not one, infinity for an integer beyond float64."""
    try:
        return float(value) if is_number(value, Real) else math.nan
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def is_list(value: object) -> bool:
    """Return True for a list or a tuple."""
    return isinstance(value, list | tuple)
