"""Every setting of the table of settings meets hostile values: each is accepted, or refused in one line by its name."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from support.checkpoints.families import WHISPER_GENERATION
from support.options import BASE, resolve, resolve_options
from support.refusals import Refused, refusal_of
from tightbeam.deploy.errors import CallerError, GenerationError, short_repr
from tightbeam.deploy.generation.fields import FIELDS
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.resolve import resolve_settings
from tightbeam.deploy.generation.values import MOST_ALTERNATIVES, MOST_FORCED_TOKENS, Integer

LONGEST_SECONDS = 0.5
"""Ten times the bound on the processor time of a refusal: other processes share the caches of this machine."""


def deep(depth: int = 100_000) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested


HOSTILE: dict[str, Callable[[], Any]] = {
    "2**31": lambda: 2**31,
    "2**70": lambda: 2**70,
    "10**100000": lambda: 10**100_000,
    "-1": lambda: -1,
    "nan": lambda: math.nan,
    "infinity": lambda: math.inf,
    "long text": lambda: "x" * 10**6,
    "long texts": lambda: ["x" * 10**6] * 60,
    "long list": lambda: ["x"] * 10**6,
    "many ids": lambda: [-1] * (2 * 10**6),
    "many valid ids": lambda: [5] * 10**6,
    "last id wrong": lambda: [5] * (1 << 18) + [-1],
    "last of another type": lambda: [5] * ((1 << 18) - 1) + ["x"],
    "many lists": lambda: [[-1]] * 10**6,
    "many pairs": lambda: [[token % 40, 3] for token in range(500_000)],
    "long lists": lambda: [[5] * 1000] * 2000,
    "one long list": lambda: [[5] * 10**6],
    "deep list": deep,
    "object": lambda: {"x": 1},
    "large object": lambda: {str(field): field for field in range(10**6)},
}
hostile = cache(lambda kind: HOSTILE[kind]())
MODELS: dict[str, dict[str, Any]] = {"text": {}, "translator": {"lang_to_id": {"en": 5}}, "whisper": WHISPER_GENERATION}
SIZES = SimpleNamespace(vocabulary=200, max_target=64, decoder_only=False)


def refusals(model: str, kind: str) -> dict[str, Refused]:
    """The refusals of a hostile value as each setting, by the setting's name."""

    def run(name: str) -> Refused | None:
        given = {name: hostile(kind)}
        defaults = {**BASE, **MODELS[model]}
        return refusal_of(lambda: resolve_settings(defaults, given, SIZES, speech=model == "whisper").for_prompt(1))

    found = {name: run(name) for name in sorted({own.name for own in FIELDS})}
    return {name: refused for name, refused in found.items() if refused is not None}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("model", MODELS)
def test_hostile_values_are_accepted_or_refused_by_name(model: str, kind: str) -> None:
    found = refusals(model, kind)
    assert len(found) > 20 and {"num_beams", "return_alternatives", "eos_token_id"} <= found.keys() | {"eos_token_id"}
    for name, refused in found.items():
        refused.check()
        assert name in refused.message


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_refusals_take_little_time(kind: str) -> None:
    value = hostile(kind)
    for name in sorted({own.name for own in FIELDS}):
        begun = time.thread_time()
        try:
            resolve(**{name: value})
        except CallerError:
            assert time.thread_time() - begun < LONGEST_SECONDS, name


def test_every_integer_has_an_upper_bound() -> None:
    assert all(own.type.most < 2**64 for own in FIELDS if isinstance(own.type, Integer))


def test_messages_clip_long_names() -> None:
    with pytest.raises(CallerError) as refused:
        resolve(**{"x" * 10**6: 1})
    assert len(str(refused.value)) < 5000


def test_forced_words_are_counted_before_they_are_read() -> None:
    two_beams = {"num_beams": 2}
    longest = [[5] * MOST_FORCED_TOKENS]
    assert resolve(force_words_ids=longest, **two_beams).force_words_ids == ((tuple(longest[0]),),)
    for words, problem in (
        ([[5] * (MOST_FORCED_TOKENS + 1)], r"has 16,385 token ids; pass 16,384 or fewer"),
        ([[5]] * (MOST_ALTERNATIVES + 1), r"has 4,097 words and alternatives; pass 4,096 or fewer"),
        ([[[5]] * 3000, [[5]] * 3000], r"has 6,000 words and alternatives; pass 4,096 or fewer"),
    ):
        with pytest.raises(GenerationError, match=problem):
            resolve(force_words_ids=words, **two_beams)


def test_forced_words_are_bounded_by_the_beams() -> None:
    words = [[[5 + n, 6] for n in range(4)]] * 1024
    assert resolve(force_words_ids=words, num_beams=4)
    with pytest.raises(
        GenerationError, match="has 4,096 words and alternatives for 5 beams; pass 3,276 or fewer, or f"
    ):
        resolve(force_words_ids=words, num_beams=5)


def test_alternatives_of_all_tokens_are_bounded() -> None:
    """Each position of each beam holds so many."""

    def run(**asked: int) -> GenerationOptions:
        return resolve_options({**BASE, "max_length": 1024}, asked, vocab_size=5000, max_positions=2048)

    assert run(return_alternatives=1024, num_beams=4).alternatives == 1024 * 4 * 1023
    with pytest.raises(
        GenerationError, match=r"for 1,023 new tokens of 5 sequences is more than 4,194,304 in all; pass"
    ):
        run(return_alternatives=1024, num_beams=5)
    run(return_alternatives=1024, num_beams=5, max_new_tokens=20)


@pytest.mark.parametrize("word", [[[5, 6], [7], [5, 6, 9]], [[5, 6], [7], [5, 6]], [[7, 8], [7]]])
def test_alternatives_that_begin_each_other_are_refused(word: list[list[int]]) -> None:
    with pytest.raises(GenerationError, match="has an alternative that begins another of its word"):
        resolve(force_words_ids=[word], num_beams=2)
    assert resolve(force_words_ids=[[[5, 6], [5, 7, 6], [6]]], num_beams=2).force_words_ids


def test_lists_are_bounded_by_the_vocabulary_and_the_positions() -> None:
    resolve(suppress_tokens=[5] * 50)
    with pytest.raises(GenerationError, match=r"suppress_tokens=.* has 51 token ids; pass 50 or fewer"):
        resolve(suppress_tokens=[5] * 51)
    with pytest.raises(GenerationError, match=r"decoder_input_ids=.* has 65 token ids; pass 64 or fewer"):
        resolve(decoder_input_ids=[5] * 65)


def test_short_forms_of_large_values_are_one_short_line() -> None:
    values = [hostile(kind) for kind in HOSTILE]
    values += [set(range(10**5)), frozenset(range(10**5)), b"x" * 10**7, {"a": {"b": {"c": {}}}}, {"a": 1}, {}, "a\nb"]
    for value in values:
        assert "\n" not in short_repr(value) and len(short_repr(value)) < 1000
    assert short_repr({"a": 1}) == "{'a': 1}" and short_repr({}) == "{}"
    assert short_repr({str(key): key for key in range(9)}) == "{'0': 0, '1': 1, '2': 2, '3': 3, ...}"
    assert short_repr(10**100_000) == "<integer of 332,193 bits>" and short_repr([2**31]) == "[2147483648]"


def test_an_array_is_quoted_in_one_line() -> None:
    numpy = pytest.importorskip("numpy")
    refused = refusal_of(lambda: resolve(bad_words_ids=numpy.zeros((9, 9))))
    assert refused is not None
    refused.check()


def test_json_of_a_refusal_is_one_line() -> None:
    assert json.dumps(short_repr("\ud800")) == "\"'\\\\ud800'\""
