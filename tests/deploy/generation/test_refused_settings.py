"""Every setting that is refused, with its one-line message."""

from __future__ import annotations

import reprlib
from typing import Any

import numpy as np
import pytest
import torch

from support.options import BASE, VOCABULARY, resolve, resolve_options
from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.fields import DORMANT, SAMPLING, UNSUPPORTED, WARPERS


@pytest.mark.parametrize("field", sorted(UNSUPPORTED))
def test_unsupported_fields_are_refused_wherever_they_come_from(field: str) -> None:
    for neutral in UNSUPPORTED[field]:
        assert resolve({field: neutral}, **{field: neutral}) == resolve()
    with pytest.raises(GenerationError, match=rf"^{field}='x' \(from the call\) is not supported; leave it out"):
        resolve(**{field: "x"})
    with pytest.raises(GenerationError, match=rf"^{field}='x' \(from the checkpoint's generation config\) is not supp"):
        resolve({field: "x"})
    with pytest.raises(GenerationError, match=f"^{field}="):
        resolve(**{field: np.zeros(3)})
    with pytest.raises(GenerationError, match=f"^{field}="):
        resolve(**{field: torch.zeros(3)})


@pytest.mark.parametrize("field", sorted(DORMANT))
def test_dormant_fields_are_refused_from_the_call_only(field: str) -> None:
    assert resolve({field: 0.123}) == resolve()
    with pytest.raises(GenerationError, match=rf"^{field}=0.123 \(from the call\) is not supported; leave it out"):
        resolve(**{field: 0.123})


@pytest.mark.parametrize("field", sorted(SAMPLING))
def test_settings_of_sampling_need_it(field: str) -> None:
    assert resolve({field: 3}) == resolve() and resolve({field: 3}).sampling is None
    with pytest.raises(GenerationError, match=rf"^{field}=3 \(from the call\) does nothing without do_sample; pass"):
        resolve(**{field: 3})
    value = {"seed": 3, "top_k": 3}.get(field, 0.5)
    found = resolve({"do_sample": True, field: value}).sampling
    assert found is not None and getattr(found, field) == value


@pytest.mark.parametrize("field", WARPERS)
def test_warpers_that_are_not_supported_are_refused_while_sampling(field: str) -> None:
    with pytest.raises(GenerationError, match=rf"^{field}=0.1 \(from the checkpoint's .* is not supported; remove it"):
        resolve({field: 0.1, "do_sample": True})


CALL, CHECKPOINT = "(from the call)", "(from the checkpoint's generation config)"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"do_sample": "yes"}, f"do_sample='yes' {CALL} is neither true nor false; pass True or False"),
        (
            {"do_sample": True, "num_beams": 2, "num_return_sequences": 3},
            f"num_return_sequences=3 {CALL} is more than num_beams=2 can give; pass 2 or less, or num_beams=3",
        ),
        (
            {"do_sample": True, "temperature": 0},
            f"temperature=0 {CALL} is not a number above 0; pass a number such as 0.7, or do_sample=False",
        ),
        ({"do_sample": True, "top_k": -1}, f"top_k=-1 {CALL} is not an integer of at least 0; pass 0 or more"),
        ({"do_sample": True, "top_p": 1.5}, f"top_p=1.5 {CALL} is not a number from 0 to 1; pass a number such as 0.9"),
        (
            {"do_sample": True, "typical_p": 0},
            f"typical_p=0 {CALL} is not a number above 0, up to 1; pass a number such as 0.9",
        ),
        (
            {"do_sample": True, "min_p": -0.1},
            f"min_p=-0.1 {CALL} is not a number from 0 to 1; pass a number such as 0.1",
        ),
        ({"do_sample": True, "seed": -1}, f"seed=-1 {CALL} is not an integer of at least 0; pass 0 or more"),
        (
            {"do_sample": True, "seed": 1 << 64},
            f"seed={1 << 64} {CALL} is not an integer from 0 to {(1 << 64) - 1}; pass {(1 << 64) - 1} or less",
        ),
        (
            {"decoder_input_ids": []},
            f"decoder_input_ids=[] {CALL} is not a list of token ids; pass a list such as [17, 4]",
        ),
        ({"seed": 1}, f"seed=1 {CALL} does nothing without do_sample; pass do_sample=True, or leave it out"),
        ({"num_beam": 4}, f"num_beam=4 {CALL} is not a generation setting; did you mean num_beams?"),
        ({"beam_size": 4}, f"beam_size=4 {CALL} is not a generation setting; did you mean num_beams?"),
        ({"num_predict": 4}, f"num_predict=4 {CALL} is not a generation setting; did you mean max_new_tokens?"),
        (
            {"suppress_sequences": [[4]]},
            f"suppress_sequences=[[4]] {CALL} is not a generation setting; did you mean bad_words_ids?",
        ),
        (
            {"streamer": 1},
            f"streamer=1 {CALL} is not a generation setting; leave it out, or take the text as it comes "
            "(Runner.stream_text)",
        ),
        (
            {"assistant_model": 1},
            f"assistant_model=1 {CALL} is not a generation setting; drafts of another model are not supported; leave "
            "it out",
        ),
        ({"z" * 9999: 1}, f"{'z' * 60}...=1 {CALL} is not a generation setting; remove it"),
        ({"a\nb": 1}, f"'a\\nb'=1 {CALL} is not a generation setting; remove it"),
        ({"zzzzz": None}, f"zzzzz=None {CALL} is not a generation setting; remove it"),
        (
            {"renormalize_logits": True, "do_sample": True, "num_beams": 2},
            f"renormalize_logits=True {CALL} does not go with do_sample and beams; pass renormalize_logits=False, "
            "or leave it out",
        ),
        (
            {"renormalize_logits": True, "num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 1.0},
            f"renormalize_logits=True {CALL} does not go with num_beam_groups; leave one out, or pass "
            "renormalize_logits=False",
        ),
        ({"renormalize_logits": "on"}, f"renormalize_logits='on' {CALL} is neither true nor false; pass True or False"),
        ({"num_beams": 0}, f"num_beams=0 {CALL} is not an integer of at least 1; pass 1 or more"),
        ({"num_beams": True}, f"num_beams=True {CALL} is not an integer of at least 1; pass 1 or more"),
        ({"num_beams": 4.0}, f"num_beams=4.0 {CALL} is not an integer of at least 1; pass 1 or more"),
        ({"num_beams": "4"}, f"num_beams='4' {CALL} is not an integer of at least 1; pass 1 or more"),
        (
            {"num_beams": 26},
            f"num_beams=26 {CALL} needs 52 distinct tokens, the vocabulary has 50; pass num_beams=25 or less",
        ),
        (
            {"num_beams": 2, "eos_token_id": list(range(50))},
            f"num_beams=2 {CALL} needs 102 distinct tokens, the vocabulary has 50; pass fewer eos_token_id",
        ),
        (
            {"num_return_sequences": 2},
            f"num_return_sequences=2 {CALL} is more than num_beams=1 can give; pass 1 or less, or num_beams=2",
        ),
        ({"num_return_sequences": 0}, f"num_return_sequences=0 {CALL} is not an integer of at least 1; pass 1 or more"),
        ({"max_length": 0}, f"max_length=0 {CALL} is not an integer of at least 1; pass 1 or more"),
        (
            {"max_length": 1},
            f"max_length=1 {CALL} leaves no room for a new token, it counts the start token; pass 2 or more",
        ),
        (
            {"max_length": 65},
            f"max_length=65 {CALL} makes sequences of 65 tokens, the model has 64 positions; "
            "pass max_length=64 or less",
        ),
        (
            {"max_new_tokens": 64},
            f"max_new_tokens=64 {CALL} makes sequences of 65 tokens, the model has 64 positions; "
            "pass max_new_tokens=63 or less",
        ),
        ({"max_new_tokens": 0}, f"max_new_tokens=0 {CALL} is not an integer of at least 1; pass 1 or more"),
        ({"min_length": -1}, f"min_length=-1 {CALL} is not an integer of at least 0; pass 0 or more"),
        ({"min_new_tokens": -1}, f"min_new_tokens=-1 {CALL} is not an integer of at least 0; pass 0 or more"),
        (
            {"no_repeat_ngram_size": -2},
            f"no_repeat_ngram_size=-2 {CALL} is not an integer of at least 0; pass 0 or more",
        ),
        (
            {"repetition_penalty": 0.0},
            f"repetition_penalty=0.0 {CALL} is not a number above 0 in the range of float32; pass a number such as 1.2",
        ),
        (
            {"repetition_penalty": float("nan")},
            f"repetition_penalty=nan {CALL} is not a number above 0 in the range of float32; pass a number such as 1.2",
        ),
        (
            {"length_penalty": float("inf")},
            f"length_penalty=inf {CALL} is not a finite number; pass a number such as 1.0",
        ),
        (
            {"length_penalty": 10**400},
            f"length_penalty={reprlib.repr(10**400)} {CALL} is not a finite number; pass a number such as 1.0",
        ),
        ({"length_penalty": False}, f"length_penalty=False {CALL} is not a finite number; pass a number such as 1.0"),
        (
            {"length_penalty": -500},
            f"length_penalty=-500 {CALL} leaves the range of float32 at the longest length; pass one nearer to 0",
        ),
        ({"early_stopping": "always"}, f"early_stopping='always' {CALL} is not a choice; pass True, False or 'never'"),
        ({"early_stopping": 1}, f"early_stopping=1 {CALL} is not a choice; pass True, False or 'never'"),
        (
            {"forced_bos_token_id": 50},
            f"forced_bos_token_id=50 {CALL} holds 50, which is outside the vocabulary; pass ids from 0 to 49",
        ),
        (
            {"forced_bos_token_id": [3]},
            f"forced_bos_token_id=[3] {CALL} holds [3], which is not a token id; pass integers",
        ),
        (
            {"forced_eos_token_id": []},
            f"forced_eos_token_id=[] {CALL} is not a list of token ids; pass a list such as [17, 4]",
        ),
        (
            {"forced_eos_token_id": [2, 3], "suppress_tokens": [1, 2, 3]},
            f"forced_eos_token_id=[2, 3] {CALL} is also in suppress_tokens, so nothing could follow; "
            "drop one of the two",
        ),
        (
            {"eos_token_id": [2, -1]},
            f"eos_token_id=[2, -1] {CALL} holds -1, which is outside the vocabulary; pass ids from 0 to 49",
        ),
        ({"eos_token_id": "2"}, f"eos_token_id='2' {CALL} holds '2', which is not a token id; pass integers"),
        ({"eos_token_id": True}, f"eos_token_id=True {CALL} holds True, which is not a token id; pass integers"),
        ({"eos_token_id": [[2]]}, f"eos_token_id=[[2]] {CALL} holds [2], which is not a token id; pass integers"),
        (
            {"pad_token_id": -1},
            f"pad_token_id=-1 {CALL} holds -1, which is outside the vocabulary; pass ids from 0 to 49",
        ),
        ({"suppress_tokens": 3}, f"suppress_tokens=3 {CALL} is not a list of token ids; pass a list such as [17, 4]"),
        (
            {"suppress_tokens": [99]},
            f"suppress_tokens=[99] {CALL} holds 99, which is outside the vocabulary; pass ids from 0 to 49",
        ),
        *(
            (
                {"bad_words_ids": words},
                f"bad_words_ids={words} {CALL} is not a list of lists of token ids; pass a list such as [[17], [4, 8]]",
            )
            for words in ([], [[]], [3], 3)
        ),
        (
            {"bad_words_ids": [[3, 50]]},
            f"bad_words_ids=[[3, 50]] {CALL} holds 50, which is outside the vocabulary; pass ids from 0 to 49",
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_refused_settings(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(GenerationError) as caught:
        resolve(**overrides)
    assert str(caught.value) == message


def test_refusals_name_the_checkpoint() -> None:
    with pytest.raises(GenerationError) as caught:
        resolve({"max_length": 200})
    assert str(caught.value) == (
        f"max_length=200 {CHECKPOINT} makes sequences of 200 tokens, the model has 64 positions; "
        "pass max_length=64 or less"
    )
    with pytest.raises(GenerationError) as caught:
        resolve({"force_bos_token_to_be_generated": True})
    assert str(caught.value).startswith(
        f"force_bos_token_to_be_generated=True {CHECKPOINT} is not a generation setting"
    )


def test_a_start_token_is_needed() -> None:
    with pytest.raises(GenerationError, match="decoder_start_token_id is not set, nor is bos_token_id"):
        resolve({"bos_token_id": None, "decoder_start_token_id": None})


def test_messages_are_one_short_line() -> None:
    with pytest.raises(GenerationError) as caught:
        resolve(bad_words_ids=[[word] for word in range(3000)])
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_the_model_needs_two_positions() -> None:
    with pytest.raises(GenerationError, match=r"max_length=None \(from transformers' default\) leaves no room"):
        resolve_options(BASE, {}, vocab_size=VOCABULARY, max_positions=1)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"num_beam_groups": 3},
            r"num_beam_groups=3 \(from the call\) does not divide num_beams=4; pass a multiple of 3",
        ),
        ({"num_beam_groups": 8}, "does not divide num_beams=4"),
        ({"num_beam_groups": 2}, "diversity_penalty=None .* is not above 0, so all groups would be the same; pass a"),
        ({"num_beam_groups": 2, "diversity_penalty": -1.0}, r"diversity_penalty=-1.0 \(from the call\) is not above 0"),
        ({"num_beam_groups": 2, "diversity_penalty": 1e38}, "is too large"),
        (
            {"diversity_penalty": 1.0},
            r"diversity_penalty=1.0 \(from the call\) is for groups of beams, and there is one",
        ),
        ({"num_beam_groups": 0}, "is not an integer of at least 1"),
        ({"num_beam_groups": 2, "diversity_penalty": "much"}, "is not a finite number"),
        (
            {"num_beam_groups": 2, "diversity_penalty": 1.0, "do_sample": True, "num_beams": 1},
            "does not go with do_sample; leave one out, or pass num_beam_groups=1",
        ),
        (
            {"num_beams": 24, "num_beam_groups": 2, "diversity_penalty": 1.0},
            r"num_beams=24 \(from the call\) in 2 groups needs 168 distinct tokens, the vocabulary has 50; pass fewer",
        ),
    ],
    ids=str,
)
def test_groups_that_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        resolve(**{"num_beams": 4, **asked})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"force_words_ids": []},
            r"force_words_ids=\[\] .* is not a list of words; pass a list such as",
        ),
        ({"force_words_ids": [7]}, "is not a list of words"),
        ({"force_words_ids": [[[]]]}, "holds .*, which is not a token id; pass integers"),
        ({"force_words_ids": [[[7], 8]]}, "is not a list of words"),
        ({"force_words_ids": [[50]]}, "holds 50, which is outside the vocabulary"),
        ({"force_words_ids": [[[7], [7, 8]]]}, "has an alternative that begins another of its word; leave the longer"),
        (
            {"force_words_ids": [[[7, 8], [7, 8]]]},
            "has an alternative that begins another of its word; leave the longer",
        ),
        ({"force_words_ids": [[7]], "num_beams": 1}, "needs beams; pass num_beams=2 or more"),
        ({"force_words_ids": [[7]], "num_beams": 1, "do_sample": True}, "does not go with do_sample; leave one out"),
        ({"force_words_ids": [[7]], "num_beam_groups": 2, "diversity_penalty": 1.0}, "not go with num_beam_groups"),
        ({"force_words_ids": [[7]], "return_token_scores": True}, "does not go with return_token_scores; leave one"),
    ],
    ids=str,
)
def test_forced_words_that_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        resolve(**{"num_beams": 4, **asked})


def test_the_number_of_forced_words_is_bounded() -> None:
    with pytest.raises(GenerationError, match=r"has 4,097 words and alternatives; pass 4,096 or fewer") as raised:
        resolve(force_words_ids=[[7]] * 4097, num_beams=2)
    assert len(str(raised.value)) < 250
