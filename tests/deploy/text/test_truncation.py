"""Truncation at either side: the tokens of transformers' tokenizer with ``truncation_side``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from support.bundles.cache import BundleCache
from support.checkpoints.families import SENTENCES
from tightbeam.deploy import InputError, Runner
from tightbeam.deploy.text.tokenizer import _TokenizersCodec, _TransformersCodec
from tightbeam.deploy.text.truncation import Side, checked_truncation, truncation_side

TEXT = "The festival\nin Lindenton  has invited\n\n259 singers.\n" * 3
SIDES: tuple[Side, ...] = ("left", "right")


@pytest.fixture(scope="module", params=["$A", "<s> $A", "$A </s>", "<s> $A </s>"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer that adds special tokens in front, behind, or at both ends."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    pairs = [(token, tokenizer.token_to_id(token)) for token in special]
    tokenizer.post_processor = processors.TemplateProcessing(single=request.param, special_tokens=pairs)
    path = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(path)
    return path


@pytest.mark.parametrize("side", SIDES)
def test_tokens_are_those_of_transformers(folder: Path, side: Side) -> None:
    reference = AutoTokenizer.from_pretrained(folder, truncation_side=side)
    whole = reference(TEXT).input_ids
    codecs: list[Any] = [_TokenizersCodec(str(folder / "tokenizer.json")), _TransformersCodec(str(folder))]
    for length in (3, 4, 11, len(whole) - 1, len(whole), len(whole) + 1):
        expected = reference(TEXT, truncation=True, max_length=length).input_ids
        assert len(expected) == min(length, len(whole))
        for codec in codecs:
            assert codec.truncate(TEXT, length, side) == expected
            assert codec.encode(TEXT) == whole  # it keeps no state


@pytest.mark.parametrize(("family", "usual"), [("bart", "right"), ("gpt2", "left")])
def test_each_kind_of_model_has_its_usual_side(bundles: BundleCache, family: str, usual: Side) -> None:
    variant = "el" if family == "bart" else "dedup"
    runner = Runner.load(bundles(variant, family, tokenizer=True), threads=1)
    text = " ".join(SENTENCES * 4)
    settings = {"max_new_tokens": 5}
    whole = runner.model.text.require_tokenizer().encode(text)
    found = {side: runner.encode(text, truncate=side, **settings) for side in (True, *SIDES)}
    assert found[True] == found[usual] and found["left"] != found["right"]
    for side in SIDES:
        tokens, cut = found[side]
        assert cut == len(whole) - len(tokens) > 0
        kept = len(tokens) - (family == "bart")  # the end token stays
        expected = whole[:kept] if side == "right" else whole[-len(tokens) :]
        assert tokens[:kept] == expected[:kept] and tokens[kept:] == whole[-1:] * (family == "bart")
        (output,) = runner.generate_outputs([text], truncate=side, **settings)
        assert (output.cut, output.cut_side) == (cut, side)
        assert output.sequences == runner.generate_outputs([text], truncate=side, **settings)[0].sequences
    (short,) = runner.generate_outputs(["a town"], truncate=True, **settings)
    assert (short.cut, short.cut_side) == (0, None)


def test_sides() -> None:
    assert [truncation_side(given, decoder_only=True) for given in (False, True, *SIDES)] == [None, "left", *SIDES]
    assert [truncation_side(given, decoder_only=False) for given in (False, True, *SIDES)] == [None, "right", *SIDES]
    for wrong in ("middle", "", 1, 0, None, ["left"], "True"):
        with pytest.raises(InputError, match=r"truncate=.* is not true, false, left or right; pass one of them"):
            checked_truncation(wrong)
