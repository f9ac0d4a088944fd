"""The resolved settings against transformers' rules."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, GenerationConfig

from support.options import BASE, POSITIONS, VOCABULARY, resolve, resolve_options
from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.fields import DORMANT, INERT, SAMPLING, UNSUPPORTED, ModelKind, fields_of
from tightbeam.deploy.generation.options import GenerationOptions


def test_each_field_of_transformers_is_in_exactly_one_table() -> None:
    supported = {name for name, own in fields_of(ModelKind.TEXT).items() if not own.ours}
    # The last one is carried by older files, and dropped by transformers when it reads them.
    fields = {*GenerationConfig().__dict__, "_commit_hash"}
    assert sorted([*supported, *INERT, *DORMANT, *UNSUPPORTED]) == sorted(fields)
    assert not fields & {name for name, own in fields_of(ModelKind.TEXT).items() if own.ours}


def test_defaults_of_transformers_are_neutral() -> None:
    filled_in = GenerationConfig._get_default_generation_params()
    for field, value in filled_in.items():
        neutral = {**SAMPLING, **DORMANT, **UNSUPPORTED}
        if value is not None and field in neutral:
            assert value in neutral[field], field
    assert resolve(filled_in | {"max_length": None}) == resolve() == resolve(**filled_in | {"max_length": None})


def test_all_defaults() -> None:
    assert resolve() == GenerationOptions(
        vocab_size=VOCABULARY,
        num_beams=1,
        num_return_sequences=1,
        length_penalty=1.0,
        early_stopping=False,
        min_length=0,
        max_length=21,
        limited_by="",
        no_repeat_ngram_size=0,
        repetition_penalty=1.0,
        forced_bos_token_id=None,
        forced_eos_token_ids=(),
        eos_token_ids=(2,),
        pad_token_id=1,
        beginning=1,
        prompt=(2,),
        choices=(),
        bad_words_ids=(),
        suppress_tokens=(),
        begin_suppress_tokens=(),
        encoder_no_repeat_ngram_size=0,
    )


def test_a_published_configuration() -> None:
    published = json.loads(
        """{"_from_model_config": true, "bos_token_id": 0, "decoder_start_token_id": 2, "early_stopping": true,
        "eos_token_id": 2, "forced_bos_token_id": 0, "forced_eos_token_id": 2, "length_penalty": 2.0, "max_length": 142,
        "min_length": 56, "no_repeat_ngram_size": 3, "num_beams": 4, "pad_token_id": 1, "top_k": 50,
        "transformers_version": "4.27.0.dev0"}"""
    )
    options = resolve_options(published, {"min_new_tokens": 10}, vocab_size=50264, max_positions=1024)
    assert (options.num_beams, options.candidates, options.normalize) == (4, 8, True)
    assert (options.max_length, options.min_length, options.length_penalty) == (142, 11, 2.0)
    assert (options.forced_bos_token_id, options.forced_eos_token_ids, options.early_stopping) == (0, (2,), True)


LENGTHS: list[dict[str, Any]] = [
    {},
    {"max_length": 20},
    {"max_length": 9},
    {"max_new_tokens": 9},
    {"max_length": 30, "max_new_tokens": 4},
    {"min_length": 3},
    {"min_new_tokens": 3},
    {"min_length": 9, "min_new_tokens": 0},
    {"min_length": 40, "max_length": 12},
    {"max_length": 1, "max_new_tokens": 5},
]


@pytest.mark.parametrize("positions", [15, POSITIONS])
@pytest.mark.parametrize("overrides", LENGTHS, ids=repr)
@pytest.mark.parametrize("defaults", LENGTHS, ids=repr)
def test_lengths_are_those_of_transformers(defaults: dict[str, Any], overrides: dict[str, Any], positions: int) -> None:
    expected = transformers_lengths(defaults, overrides, positions)
    resolved = None
    try:
        options = resolve_options(BASE | defaults, overrides, vocab_size=VOCABULARY, max_positions=positions)
        resolved = (options.max_length, options.min_length)
    except GenerationError as error:
        assert expected is None or expected[0] > positions, error  # transformers may run past the positions, and fail
    if resolved is not None:
        assert resolved == expected


def transformers_lengths(defaults: dict[str, Any], overrides: dict[str, Any], positions: int) -> tuple[int, int] | None:
    """The (max_length, min_length) that the loop of `generate` receives; None where it refuses."""
    model = BartForConditionalGeneration(
        BartConfig(
            vocab_size=VOCABULARY,
            d_model=4,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=1,
            decoder_attention_heads=1,
            encoder_ffn_dim=4,
            decoder_ffn_dim=4,
            max_position_embeddings=positions,
        )
    )
    seen: list[GenerationConfig] = []

    def loop(model: Any, input_ids: Any, *, generation_config: GenerationConfig, **rest: Any) -> Any:
        seen.append(generation_config)
        return input_ids

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.generation_config = GenerationConfig(**BASE, **defaults)
        try:
            model.generate(torch.tensor([[5, 6]]), custom_generate=loop, **overrides)
        except ValueError:
            return None
    return seen[0].max_length, seen[0].min_length


def test_fallbacks_of_the_special_tokens() -> None:
    assert resolve({"pad_token_id": None, "eos_token_id": [7, 2]}).pad_token_id == 7
    assert resolve({"pad_token_id": None, "eos_token_id": None}).pad_token_id is None
    assert resolve({"decoder_start_token_id": None}).prompt[0] == 0
    assert resolve({"eos_token_id": None}).eos_token_ids == ()


def test_fill_token() -> None:
    assert resolve().fill_token_id == 1
    assert resolve(pad_token_id=0).fill_token_id == 2
    assert resolve({"eos_token_id": None}).fill_token_id == -1
    assert resolve(eos_token_id=[7, 2], pad_token_id=0).fill_token_id == 7


def test_number_of_candidates() -> None:
    assert [resolve(num_beams=4, eos_token_id=eos).candidates for eos in (2, [2, 3], [2, 3, 4])] == [8, 12, 16]
    assert resolve({"eos_token_id": None}, num_beams=4).candidates == 8
    assert resolve(num_beams=25).candidates == VOCABULARY


def test_numbers_and_lists_of_several_kinds() -> None:
    options = resolve(
        num_beams=np.int64(4), length_penalty=np.float32(2), suppress_tokens=(5,), bad_words_ids=((6,), [7, 8], [2])
    )
    assert (options.num_beams, options.length_penalty, options.suppress_tokens) == (4, 2.0, (5,))
    assert options.bad_words_ids == ((6,), (7, 8))
    assert type(options.num_beams) is int
    assert type(options.length_penalty) is float
    assert resolve(forced_eos_token_id=[2, 3]).forced_eos_token_ids == (2, 3)


def test_none_leaves_fields_that_transformers_requires() -> None:
    assert resolve({"num_beams": 4}, num_beams=None, sequence_bias=None).num_beams == 4


def test_checkpoints_may_carry_fields_of_modes_that_are_off() -> None:
    carried = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "num_assistant_tokens": 5}
    assert resolve({**carried, "do_sample": False}) == resolve()
    assert resolve(temperature=1.0, top_k=50, top_p=1.0) == resolve()


def test_inert_fields_are_accepted() -> None:
    given = {"use_cache": False, "output_scores": True, "return_dict_in_generate": True, "cache_config": {"x": 1}}
    assert resolve(given, **given, cache_implementation="static") == resolve()


def test_the_call_can_neutralise_the_checkpoint() -> None:
    assert resolve({"do_sample": True, "guidance_scale": 2.0}, do_sample=False, guidance_scale=1.0)


def test_only_beams_are_renormalised() -> None:
    for beams in (1, 4):
        options = resolve({"renormalize_logits": True}, num_beams=beams)
        assert options.renormalize == options.reads_logits == (beams > 1)
        assert options.needs_logits == ("renormalize_logits=True" if beams > 1 else "")
    assert not resolve({"renormalize_logits": True, "do_sample": True}).renormalize


def test_candidates_of_sampling() -> None:
    """Candidates hold the best ``top_k`` and what equals the last one; whole rows are read where they would be many."""
    for top_k, candidates in ((1, 16), (8, 16), (9, 32), (50, 64), (248, 256)):
        options = resolve_options(BASE, {"do_sample": True, "top_k": top_k}, vocab_size=1000, max_positions=POSITIONS)
        assert (options.candidates, options.samples_candidates, options.needs_logits) == (candidates, True, "")
    for settings, reason in (({"top_k": 249}, "top_k=249"), ({"top_k": 0}, "top_k=0")):
        assert resolve(do_sample=True, **settings).needs_logits == reason
    assert resolve(do_sample=True, num_return_sequences=2).needs_logits == "num_return_sequences=2"


def test_none_in_a_call_unsets_what_the_checkpoint_sets() -> None:
    set_by_checkpoint = {"forced_eos_token_id": 2, "bad_words_ids": [[4]], "no_repeat_ngram_size": 3, "min_length": 9}
    assert resolve(set_by_checkpoint, **dict.fromkeys(set_by_checkpoint)) == resolve()
    assert resolve({"do_sample": True}, do_sample=None) == resolve()


def test_an_end_of_sequence_token_among_the_bad_words_bans_nothing() -> None:
    assert resolve(bad_words_ids=[[2]]).bad_words_ids == ()


def test_a_beginning_is_the_decoder_prompt() -> None:
    start = resolve().prompt[0]
    for given in ([9, 4], [start, 9, 4]):
        options = resolve(decoder_input_ids=given, max_new_tokens=3)
        assert (options.prompt, options.beginning, options.max_length) == ((start, 9, 4), 3, 6)
    assert resolve(decoder_input_ids=[start]) == resolve()
    with pytest.raises(GenerationError, match=r"decoder_input_ids=.* is for models with an encoder; pass the whole"):
        resolve_options(
            BASE, {"decoder_input_ids": [4]}, vocab_size=VOCABULARY, max_positions=POSITIONS, prompt_length=3
        )


def test_groups_of_beams() -> None:
    options = resolve(num_beams=4, num_beam_groups=4, diversity_penalty=1)
    assert (options.num_beam_groups, options.diversity_penalty, options.candidates) == (4, 1.0, 5)
    assert resolve(num_beams=6, num_beam_groups=2, diversity_penalty=0.5, eos_token_id=[2, 3, 4]).candidates == 21
    assert resolve({"num_beam_groups": 2, "diversity_penalty": 1.0}, num_beams=4).kind == "2 groups of beams"
    neutral = {"num_beam_groups": 1, "diversity_penalty": 0.0}
    assert resolve(num_beams=4, **neutral) == resolve(num_beams=4)


def test_forced_words() -> None:
    options = resolve(num_beams=4, force_words_ids=[[7, 8], [[9], [3, 4]]])
    assert options.force_words_ids == (((7, 8),), ((9,), (3, 4)))
    assert (options.needs_logits, options.reads_logits, options.kind) == (
        "force_words_ids",
        True,
        "beams with forced words",
    )
