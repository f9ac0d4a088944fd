"""The incremental detokenizer: pieces of text while a row grows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from tightbeam.deploy import Runner
from tightbeam.deploy.text.detokenizer import HALF, IncrementalDetokenizer


@pytest.fixture(scope="module")
def bytewise() -> Tokenizer:
    """A tokenizer of bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: place for place, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.mark.parametrize(
    "text", ["a town", "\u00e9t\u00e9", "\u96ea \u96ea", "a \U0001f642 b\U0001f468\u200d\U0001f469"]
)
def test_characters_are_whole(bytewise: Tokenizer, text: str) -> None:
    detokenizer = IncrementalDetokenizer(lambda tokens: bytewise.decode(list(tokens)))
    pieces = [detokenizer.add(token) for token in bytewise.encode(text).ids]
    assert "".join(pieces) == text
    assert not any(HALF in piece for piece in pieces)
    assert len([piece for piece in pieces if piece]) == len(text)  # each as soon as it is there


def test_invalid_bytes_appear_once_certain(bytewise: Tokenizer) -> None:
    first, *_ = bytewise.encode("\u00e9").ids
    letter = bytewise.encode("a").ids[0]
    detokenizer = IncrementalDetokenizer(lambda tokens: bytewise.decode(list(tokens)))
    assert [detokenizer.add(token) for token in (letter, first, letter, first)] == ["a", "", f"{HALF}a", ""]


def test_text_of_a_word_tokenizer(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", tokenizer=True), threads=1)
    for sentence in SENTENCES:
        tokens = runner.encode(sentence)[0]
        detokenizer = IncrementalDetokenizer(runner.decode)
        pieces = [detokenizer.add(token) for token in tokens]
        assert "".join(pieces) == runner.decode(tokens) == sentence
        assert pieces[-1] == ""  # the end is no text


def test_no_text_is_returned_twice() -> None:
    """The tokenizer takes a space back, and later the text begins again with all that was returned."""
    texts = ["", "a", "a .", "a.", "a. b", "a . b"]

    def decode(tokens: Sequence[int]) -> str:
        return texts[len(tokens)]

    detokenizer = IncrementalDetokenizer(decode)
    assert [detokenizer.add(0) for _ in texts[1:]] == ["a", " .", "", "", " b"]
