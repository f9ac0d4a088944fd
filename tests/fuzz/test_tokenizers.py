"""Fuzzing of tokenizer.json: a tokenizer that loads encodes, decodes and streams any text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from support.bundles.cache import BundleCache
from support.fuzzing import bytes_like, corpus, fuzz, json_like
from tightbeam.deploy.bundle.reader import Bundle
from tightbeam.deploy.text.tokenizer import load_codec

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
TEXTS = ("a small town", "", "\u00e9\U0001f600 \n\t", "x" * 300, "<s></s><pad>")


def test_tokenizer_files(bundles: BundleCache, tmp_path: Path) -> None:
    made = [bundles("dedup", tokenizer=True), bundles("dedup", "gpt2", tokenizer=True)]
    folder = Path(shutil.copytree(made[0], tmp_path / "bundle"))
    bundle = Bundle.load(folder)
    assert bundle.manifest.tokenizer is not None
    path = folder / bundle.manifest.tokenizer.folder / "tokenizer.json"
    files = [each / bundle.manifest.tokenizer.folder / "tokenizer.json" for each in made]
    valid = [json.loads(file.read_text()) for file in files]
    kinds = [
        {"type": kind} for kind in ("ByteFallback", "Fuse", "Metaspace", "BPEDecoder", "WordPiece", "CTC", "Strip")
    ]
    kinds += [{"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}, {"type": "Sequence", "decoders": []}]

    def run(example: Any) -> None:
        path.write_bytes(example if isinstance(example, bytes) else json.dumps(example).encode())
        codec = load_codec(bundle)
        assert codec is not None
        for text in TEXTS:
            codec.decode(codec.encode(text))
            codec.encode_output(text)
            codec.truncate(text, 5)
        codec.decode([0, 2**31, 5])
        repr(codec.rules)
        for token in (0, 5, 2**31):
            codec.token_texts.of(token)

    examples = st.one_of(
        json_like(valid, kinds), json_like(valid, kinds), bytes_like([file.read_bytes() for file in files])
    )
    fuzz("tokenizers", examples, run, first=[*valid, *corpus("tokenizers")])
