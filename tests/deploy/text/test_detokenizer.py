"""The incremental detokenizer: pieces of text while a row grows, which join to the text of the whole row."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import ByT5Tokenizer, MarianTokenizer

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from support.checkpoints.whisper_tokenizer import whisper_tokenizer
from tightbeam.deploy import Runner
from tightbeam.deploy.inputs.output import BEGUN, TIMESTAMP
from tightbeam.deploy.text.decoder_rules import DecoderRules, rules_of_decoder
from tightbeam.deploy.text.detokenizer import CONTEXT, HALF, IncrementalDetokenizer, RemovedText, StrippedText
from tightbeam.deploy.text.tokenizer import CLEAN_UP_REACH, TextCodec, _TokenizersCodec, _TransformersCodec

WORDS = ["a", "the", "do", "n't", "'", "'m", "'s", "ve", ".", ",", "!", "?", "##ing", "##", "▁a", "▁", "▁▁b", "c▁d"]
WORDS += [
    "x</w>",
    "</w>y</w>",
    "Ġa",
    "é",
    "雪",
    "🙂",
    "👨‍👩",
    HALF,
    " ",
    "  ",
    "\n",
    " .",
    "<|",
    "1.",
    "00|>",
    "<0x",
    "e\u0301",
]
BYTES = [f"<0x{byte:02X}>" for byte in (0x41, 0x20, 0xC3, 0xA9, 0xE9, 0x9B, 0xAA, 0xF0, 0x9F, 0x99, 0x82, 0xFF)]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
LLAMA = [
    decoders.Replace("▁", " "),
    decoders.ByteFallback(),
    decoders.Fuse(),
    decoders.Strip(content=" ", left=1, right=0),
]
DECODERS: dict[str, Any] = {
    "none": None,
    "byte level": decoders.ByteLevel(),
    "byte level, stripped": decoders.Sequence([decoders.ByteLevel(), decoders.Strip(content=" ", left=1, right=0)]),
    "metaspace": decoders.Metaspace(),
    "metaspace, never": decoders.Metaspace(prepend_scheme="never"),
    "word piece": decoders.WordPiece(cleanup=True),
    "word piece as it is": decoders.WordPiece(cleanup=False),
    "bpe": decoders.BPEDecoder(),
    "llama": decoders.Sequence(LLAMA),
    "gemma": decoders.Sequence(LLAMA[:3]),
    "bytes": decoders.ByteFallback(),
    "strip each": decoders.Strip(content=" ", left=1, right=0),
    "replaced behind": decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex("a.*b"), "")]),
    "ctc": decoders.CTC(),
    "bytes behind": decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()]),
}


def tokenizer_of(decoder: Any) -> Tokenizer:
    """A tokenizer of single characters of bytes, of `WORDS`, of byte-fallback tokens, and of special tokens."""
    tokens = list(dict.fromkeys([*ALPHABET, *WORDS, *BYTES]))
    tokenizer = Tokenizer(models.WordLevel({token: place for place, token in enumerate(tokens)}, unk_token="a"))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken("<s>"), AddedToken("</s>")])
    tokenizer.add_tokens([AddedToken("<|0.02|>"), AddedToken(" kept "), AddedToken("naïve")])
    return tokenizer


def codec_of(tokenizer: Tokenizer, folder: Path) -> TextCodec:
    """The codec of a tokenizer."""
    tokenizer.save(str(folder / "tokenizer.json"))
    return _TokenizersCodec(str(folder / "tokenizer.json"))


def byte_characters(text: str) -> list[str]:
    """The characters that stand for the bytes of a text."""
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [character for part, _ in bytewise.pre_tokenize_str(text) for character in part]


def id_of(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None
    return found


def ids_of(tokenizer: Tokenizer, generator: np.random.Generator, count: int) -> list[int]:
    """Random tokens: characters cut in bytes, runs of byte tokens, words, special tokens, and none that exists."""
    found: list[str | None] = []
    while len(found) < count:
        match generator.integers(6):
            case 0:
                text = str(generator.choice(["🙂", "雪", "é", " a", "\n", "👨‍👩", "ab"]))
                parts = byte_characters(text)
                found += parts[: generator.integers(1, len(parts) + 1)]
            case 1:
                found += generator.choice(BYTES, generator.integers(1, 6)).tolist()
            case 2:
                found += ["<0xE9>", "<0x9B>", "<0xAA>"] * int(generator.integers(1, 3))
            case 3:
                found.append(str(generator.choice(["<s>", "</s>", "<|0.02|>", " kept ", "naïve"])))
            case 4:
                found.append(None)
            case _:
                found.append(str(generator.choice(WORDS)))
    return [10_000 if token is None else id_of(tokenizer, token) for token in found][:count]


def check_pieces(detokenizer: IncrementalDetokenizer, ids: Sequence[int], decode: Callable[..., str]) -> list[str]:
    """Join the pieces after every token, and return them. Each is the beginning of all later texts."""
    pieces: list[str] = []
    for token in ids:
        pieces.append(detokenizer.add(token))
    whole = decode(list(ids))
    assert whole.startswith("".join(pieces))
    assert "".join(pieces) + detokenizer.rest(whole) == whole
    return pieces


@pytest.mark.parametrize("name", DECODERS)
def test_pieces_join_to_the_text(name: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(DECODERS[name])
    codec = codec_of(tokenizer, tmp_path)
    generator = np.random.default_rng(0)
    for count in [*range(1, 9)] * 12 + [150] * 25:
        ids = ids_of(tokenizer, generator, count)
        check_pieces(IncrementalDetokenizer(codec.decode, codec.rules), ids, codec.decode)


@pytest.mark.parametrize("name", ["byte level", "byte level, stripped", "metaspace", "word piece", "llama", "none"])
def test_every_token_has_its_text_at_once(name: str, tmp_path: Path) -> None:
    """A word is not held back until the next."""
    tokenizer = tokenizer_of(DECODERS[name])
    codec = codec_of(tokenizer, tmp_path)
    words = ["the", "do", "naïve", "."] * 40
    ids = [id_of(tokenizer, word) for word in words]
    pieces = check_pieces(IncrementalDetokenizer(codec.decode, codec.rules), ids, codec.decode)
    assert all(pieces) and len(pieces) == len(words)


@pytest.mark.parametrize("name", ["byte level", "llama", "bpe", "word piece"])
def test_a_token_is_decoded_with_few_others(name: str, tmp_path: Path) -> None:
    """A long row takes time in proportion to its length."""
    tokenizer = tokenizer_of(DECODERS[name])
    codec, windows = codec_of(tokenizer, tmp_path), list[int]()

    def decode(tokens: Sequence[int]) -> str:
        windows.append(len(tokens))
        return codec.decode(tokens)

    generator = np.random.default_rng(1)
    words = [str(word) for word in generator.choice(["the", "雪", "do", ".", "<s>"], 2_000)]
    ids = [id_of(tokenizer, word) for word in words]
    check_pieces(IncrementalDetokenizer(decode, codec.rules), ids, codec.decode)
    assert max(windows) <= 4 * CONTEXT + 8
    run = [id_of(tokenizer, byte) for byte in ["<0xE9>", "<0x9B>", "<0xAA>"] * 500]
    check_pieces(IncrementalDetokenizer(decode, codec.rules), [*run, *ids], codec.decode)
    assert sum(windows) < 50 * CONTEXT * len([*run, *ids])


def test_unknown_decoders_give_the_text_at_the_end() -> None:
    for decoder in ({"type": "New"}, {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "WordPiece"}]}):
        rules = rules_of_decoder(decoder, frozenset(), bool)
        assert rules == DecoderRules(at_end=True)
    detokenizer = IncrementalDetokenizer(lambda tokens: "a" * len(tokens), rules)
    assert [detokenizer.add(0), detokenizer.add(0), detokenizer.rest("aa")] == ["", "", "aa"]


def test_text_that_transformers_cleans_up() -> None:
    """A tokenizer that is not known in detail: its text loses spaces at its end, and before punctuation."""
    parts = [
        " ",
        "'",
        " '",
        "n't",
        " n't",
        ".",
        " .",
        " ,",
        "m",
        " 'm",
        " 've",
        "ve",
        "re",
        "s",
        " do",
        "a",
        "?",
        " ' ",
    ]
    tokenizer = whisper_tokenizer()

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.clean_up_tokenization("".join(parts[token] for token in tokens))).strip()

    rules = DecoderRules(last_token=True, spaces=True, reach=CLEAN_UP_REACH)
    generator = np.random.default_rng(2)
    for count in [5, 20, 200] * 40:
        ids = generator.integers(0, len(parts), count).tolist()
        check_pieces(IncrementalDetokenizer(decode, rules), ids, decode)
    words = [14, 15] * 100
    assert sum(map(bool, check_pieces(IncrementalDetokenizer(decode, rules), words, decode))) > 50


LANGUAGES = {"source_lang": "en", "target_lang": "de"}


def marian(folder: Path, *, byte_fallback: bool) -> None:
    """A tokenizer of Python and sentencepiece, without ``tokenizer.json``."""
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a small town in spring, that isn't large.", "two  trains 雪 and a bus!"] * 9),
            model_prefix=str(folder / side),
            vocab_size=320 if byte_fallback else 50,
            byte_fallback=byte_fallback,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "target.spm"))
    names = dict.fromkeys(["</s>", "<unk>", *map(pieces.id_to_piece, range(len(pieces))), "<pad>"])
    (folder / "vocab.json").write_text(json.dumps({name: place for place, name in enumerate(names)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer", **LANGUAGES}))


@pytest.mark.parametrize("cleaned", [False, True])
@pytest.mark.parametrize("kind", ["marian", "marian of bytes", "byt5"])
def test_tokenizers_of_transformers(tmp_path: Path, kind: str, cleaned: bool) -> None:
    settings = {"clean_up_tokenization_spaces": cleaned}
    tokenizer: Any = ByT5Tokenizer(**settings)
    if kind != "byt5":
        marian(tmp_path, byte_fallback=kind != "marian")
        tokenizer = MarianTokenizer.from_pretrained(tmp_path, **settings)
    tokenizer.save_pretrained(tmp_path / "saved")
    codec = _TransformersCodec(str(tmp_path / "saved"))
    generator, many = np.random.default_rng(5), 0
    text = codec.encode_output("a small town, isn't it? é雪🙂 .") * 4
    for count in [3, 9, 80] * 12:
        ids = [*generator.integers(0, len(tokenizer), count).tolist(), *text, *generator.integers(0, 9, 2).tolist()]
        many += sum(map(bool, check_pieces(IncrementalDetokenizer(codec.decode, codec.rules), ids, codec.decode)))
    assert many > 300


def test_timestamps_are_removed() -> None:
    parts = ["<|1.00|>", "<|", "1", ".", "00", "|>", "<", "|", "a", " b", "<|0.02|>", "<|x|>", "\n", " "]

    def raw(tokens: Sequence[int]) -> str:
        return "".join(parts[token] for token in tokens)

    generator = np.random.default_rng(3)
    for count in [4, 12, 100] * 60:
        ids = generator.integers(0, len(parts), count).tolist()
        detokenizer = IncrementalDetokenizer(raw, filters=[RemovedText(TIMESTAMP, BEGUN)])
        check_pieces(detokenizer, ids, lambda tokens: re.sub(TIMESTAMP, "", raw(tokens)))
        detokenizer = IncrementalDetokenizer(raw, filters=[RemovedText(TIMESTAMP, BEGUN), StrippedText()])
        check_pieces(detokenizer, ids, lambda tokens: re.sub(TIMESTAMP, "", raw(tokens)).strip())
    detokenizer = IncrementalDetokenizer(raw, filters=[RemovedText(TIMESTAMP, BEGUN)])
    assert [detokenizer.add(token) for token in (8, 0, 9, 11, 1, 8)] == ["a", "", " b", "<|x|>", "", "<|a"]


@pytest.mark.parametrize(
    "text", ["a town", "\u00e9t\u00e9", "\u96ea \u96ea", "a \U0001f642 b\U0001f468\u200d\U0001f469"]
)
def test_characters_are_whole(text: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(decoders.ByteLevel())
    codec = codec_of(tokenizer, tmp_path)
    ids = [id_of(tokenizer, byte) for byte in byte_characters(text)]
    pieces = check_pieces(IncrementalDetokenizer(codec.decode, codec.rules), ids, codec.decode)
    assert "".join(pieces) == text
    assert not any(HALF in piece for piece in pieces)
    assert len([piece for piece in pieces if piece]) == len(text)  # each as soon as it is there


def test_invalid_bytes_appear_once_certain() -> None:
    tokenizer = tokenizer_of(decoders.ByteLevel())
    first, letter = (id_of(tokenizer, part) for part in (ALPHABET[ALPHABET.index("Ã")], "a"))
    detokenizer = IncrementalDetokenizer(lambda tokens: str(tokenizer.decode(list(tokens))))
    assert [detokenizer.add(token) for token in (letter, first, letter, first)] == ["a", "", f"{HALF}a", ""]


def test_a_run_of_byte_tokens_is_text_behind_its_end(tmp_path: Path) -> None:
    """All of it becomes replacement characters if one byte more makes it invalid."""
    tokenizer = tokenizer_of(DECODERS["llama"])
    codec = codec_of(tokenizer, tmp_path)
    snow = ["<0xE9>", "<0x9B>", "<0xAA>"]
    for more, text in ([], "a雪a"), (["<0xE9>"], f"a{HALF * 4}a"):
        ids = [id_of(tokenizer, part) for part in ["a", *snow, *more, "a"]]
        pieces = check_pieces(IncrementalDetokenizer(codec.decode, codec.rules), ids, codec.decode)
        assert pieces[0] == "a" and not any(pieces[1:-1]) and "".join(pieces) == text


def test_text_of_a_word_tokenizer(bundles: BundleCache) -> None:
    runner = Runner.load(bundles("dedup", tokenizer=True), threads=1)
    for sentence in SENTENCES:
        tokens = runner.encode(sentence)[0]
        pieces = check_pieces(IncrementalDetokenizer(runner.decode), tokens, runner.decode)
        assert "".join(pieces) == sentence
        assert pieces[-1] == ""  # the end is no text


def test_no_text_is_returned_twice() -> None:
    """A tokenizer that takes a space back, against its rules."""
    texts = ["", "a", "a .", "a."]
    detokenizer = IncrementalDetokenizer(lambda tokens: texts[len(tokens)])
    assert [detokenizer.add(0) for _ in texts[1:]] == ["a", " .", ""]
    assert detokenizer.rest("a.") == ""
