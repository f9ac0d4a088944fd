"""Stop strings end the rows that they end in transformers' `StopStringCriteria`, whatever the tokenizer."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import MarianTokenizer, PreTrainedTokenizerFast
from transformers.generation.stopping_criteria import StopStringCriteria

from support.checkpoints.families import SENTENCES
from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.stop_strings import StopStrings
from tightbeam.deploy.search.endings.stop_strings import StopStringEnding
from tightbeam.deploy.text.tokenizer import TextCodec, _TokenizersCodec, _TransformersCodec

WORDS = [
    *string.ascii_lowercase,
    *string.digits,
    "abcdef",
    "<unk>",
    "</s>",
    "the",
    "op",
    "##op",
    "##s",
    ",",
    "'",
    "'s",
    "é",
    "雪",
    "🙂",
]
WORDS += [
    "▁the",
    "▁",
    "▁op",
    "st▁o",
    "stop",
    "sto",
    "pper",
    "Ġa",
    "Ġthe",
    "Ċ",
    "<|end|>",
    "a</w>",
    " ",
    "\n",
    "x y",
    "",
]
BYTES = [f"<0x{byte:02X}>" for byte in (0x41, 0x20, 0xC3, 0xA9, 0xE9, 0x9B, 0xAA, 0xF0, 0x9F, 0x99, 0x82)]
LEVEL = ["ÃŃ", "é", "ï", "ģ", "éĽª", "éĽ", "ª", "ðŁĻ", "Ĥ", "ðŁ", "Ã©", "Ã", "©"]
LLAMA = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(content=" ", left=1, right=0),
    ]
)
DECODERS: dict[str, Any] = {
    "none": None,
    "byte level": decoders.ByteLevel(),
    "byte level in a sequence": decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()]),
    "metaspace": decoders.Metaspace(),
    "word piece": decoders.WordPiece(cleanup=True),
    "bpe": decoders.BPEDecoder(),
    "llama": LLAMA,
}


def fast(decoder: Any, folder: Path) -> tuple[Any, TextCodec]:
    names = dict.fromkeys([*WORDS, *BYTES, *LEVEL])
    tokenizer = Tokenizer(models.WordLevel({name: place for place, name in enumerate(names)}, unk_token="<unk>"))
    in_words = decoder is None or isinstance(decoder, decoders.WordPiece)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace() if in_words else pre_tokenizers.Split("", "isolated")
    if decoder is not None:
        tokenizer.decoder = decoder
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer), _TokenizersCodec(str(folder / "tokenizer.json"))


def marian(folder: Path) -> tuple[Any, TextCodec]:
    """A tokenizer of Python and sentencepiece, without ``tokenizer.json``."""
    folder.mkdir(exist_ok=True)
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*SENTENCES, string.ascii_lowercase] * 20),
            model_prefix=str(folder / side),
            vocab_size=60,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "target.spm"))
    names = dict.fromkeys(["</s>", "<unk>", *map(pieces.id_to_piece, range(len(pieces))), "<pad>"])
    (folder / "vocab.json").write_text(json.dumps({name: place for place, name in enumerate(names)}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer"})
    )
    return MarianTokenizer.from_pretrained(folder), _TransformersCodec(str(folder))


TOKENIZERS: dict[str, Callable[[Path], tuple[Any, TextCodec]]] = {
    **{name: lambda folder, decoder=decoder: fast(decoder, folder) for name, decoder in DECODERS.items()},
    "marian": marian,
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_rows_end_as_in_transformers(name: str, tmp_path: Path) -> None:
    tokenizer, codec = TOKENIZERS[name](tmp_path / "tokenizer")
    texts, draw, hits = codec.token_texts, random.Random(name), 0
    vocabulary = max(tokenizer.get_vocab().values()) + 1
    for _ in range(60):
        row = [draw.randrange(vocabulary) for _ in range(10)]
        whole = b"".join(texts.of(token) or b"" for token in row).decode("utf-8", "replace").replace("\ufffd", "")
        begins = [draw.randrange(max(1, len(whole))) for _ in range(draw.choice([1, 1, 2, 3]))]
        stops = [text for begin in begins if (text := whole[begin : begin + draw.choice([1, 2, 3, 5, 9, 20])])]
        if not stops:
            continue
        try:
            reference = StopStringCriteria(tokenizer, stops)
        except ValueError:  # no token holds the end of a text: it never comes
            continue
        ending = StopStringEnding(StopStrings(tuple(stops), texts))
        for T in range(1, len(row) + 1):
            expected = bool(reference(torch.tensor([row[:T]]), None)[0])
            history = np.array(row[: T - 1], np.int64)[None]
            found = ending.ends(history, np.zeros(1, np.int64), np.array([row[T - 1]]))
            assert found.tolist() == [expected], (stops, row[:T])
            hits += expected
    assert hits > 20


def test_each_row_of_a_sample_has_its_own_beginning(tmp_path: Path) -> None:
    _, codec = fast(decoders.Metaspace(), tmp_path / "tokenizer")
    token = {name: place for place, name in enumerate(dict.fromkeys([*WORDS, *BYTES, *LEVEL]))}
    history = np.array([[token["s"], token["t"]], [token["t"], token["s"]], [token["sto"], token[""]]])
    ending = StopStringEnding(StopStrings(("stop",), codec.token_texts))
    rows, tokens = np.array([0, 1, 2, 2]), np.array([token["op"], token["op"], token["pper"], token["op"]])
    assert ending.ends(history, rows, tokens).tolist() == [True, False, True, False]


def test_a_tokenizer_that_cannot_write_the_prefix_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "w5": 1}, unk_token="<unk>"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(GenerationError, match="stop_strings need a tokenizer that can write 'abcdef'"):
        _ = _TokenizersCodec(str(tmp_path / "tokenizer.json")).token_texts
