"""Languages of source and target by name: which token each becomes, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.options import GenerationOptions
from tightbeam.deploy.generation.resolve import resolve_settings
from tightbeam.deploy.generation.translation import check_without_text, from_language
from tightbeam.export.checkpoint.languages import language_settings
from tightbeam.export.families.table import FAMILIES

NLLB: dict[str, Any] = {
    "decoder_start_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "max_length": 20,
    "lang_to_id": {"deu_Latn": 71, "eng_Latn": 72, "fra_Latn": 73},
}
SIZES = SimpleNamespace(vocabulary=101, max_target=64, decoder_only=False)


def options(defaults: dict[str, Any] = NLLB, **settings: Any) -> GenerationOptions:
    return resolve_settings(defaults, settings, SIZES, speech=False).for_prompt(1)


def test_the_target_is_the_first_token() -> None:
    assert options(target_language="deu_Latn").forced_bos_token_id == 71
    assert options(target_language="FRA_latn").forced_bos_token_id == 73
    assert options().forced_bos_token_id is None
    own = {**NLLB, "forced_bos_token_id": 72}
    assert (options(own).forced_bos_token_id, options(own, target_language="deu_Latn").forced_bos_token_id) == (72, 71)


def test_the_target_is_not_lost_behind_a_beginning() -> None:
    for begun in ([71, 5], [2, 71], [2]):
        assert options(target_language="deu_Latn", decoder_input_ids=begun).forced_bos_token_id == 71
    for begun in ([5], [2, 5]):
        with pytest.raises(GenerationError, match=r"does nothing, since decoder_input_ids=\[.*begin them with 71"):
            options(target_language="deu_Latn", decoder_input_ids=begun)
    named = {"target_language": "fra_Latn", "decoder_input_ids": [73, 5]}  # the call's target is the one that counts
    assert options(generation_config={"target_language": "deu_Latn"}, **named).forced_bos_token_id == 73


def test_the_target_is_the_start_token_where_the_checkpoints_is_a_language() -> None:
    chosen = options({**NLLB, "decoder_start_token_id": 73}, target_language="deu_Latn")
    assert (chosen.prompt, chosen.forced_bos_token_id) == ((71,), None)


@pytest.mark.parametrize("ids", [[72, 5, 6, 2], [5, 6, 2, 72]], ids=["first", "last"])
def test_the_source_takes_the_place_of_the_tokenizers(ids: list[int]) -> None:
    assert from_language(ids, NLLB, {}) == ids
    expected = [73 if token == 72 else token for token in ids]
    assert from_language(ids, NLLB, {"source_language": "fra_Latn"}) == expected
    assert options(source_language="fra_Latn") == options()


@pytest.mark.parametrize(
    ("defaults", "settings", "message"),
    [
        (NLLB, {"target_language": "de_Latn"}, "is not a language of this model; did you mean deu_Latn"),
        (NLLB, {"target_language": "x"}, "pass one of deu_Latn, eng_Latn, fra_Latn"),
        (NLLB, {"target_language": 71}, "pass a name such as 'deu_Latn'"),
        (NLLB, {"source_language": "x"}, "is not a language of this model"),
        (NLLB, {"target_language": "deu_Latn", "forced_bos_token_id": 72}, "both name the target"),
        ({**NLLB, "lang_to_id": None}, {"target_language": "deu_Latn"}, "for translators"),
    ],
)
def test_what_is_refused(defaults: dict[str, Any], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        options({name: value for name, value in defaults.items() if value is not None}, **settings)


def test_a_source_language_needs_a_text_that_names_one() -> None:
    with pytest.raises(GenerationError, match="gives a text no language"):
        from_language([5, 6, 2], NLLB, {"source_language": "fra_Latn"})
    with pytest.raises(GenerationError, match="is for texts; token ids"):
        check_without_text({"source_language": "fra_Latn"})
    check_without_text({"target_language": "fra_Latn"})


@pytest.mark.parametrize(
    ("family", "tokens", "expected"),
    [
        ("m2m_100", ["deu_Latn", "zho_Hans", "de", "deu_latn"], {"deu_Latn": 0, "zho_Hans": 1}),
        ("m2m_100", ["__de__", "__ast__", "__madeupword0__"], {"de": 0, "ast": 1}),
        ("mbart", ["de_DE", "en_XX", "deu_Latn"], {"de_DE": 0, "en_XX": 1}),
        ("bart", ["de_DE"], None),
    ],
)
def test_names_of_tokens(family: str, tokens: list[str], expected: dict[str, int] | None) -> None:
    tokenizer = SimpleNamespace(get_vocab=lambda: {token: number for number, token in enumerate(tokens)})
    found = language_settings(next(own for own in FAMILIES if own.model_type == family), tokenizer, 100)
    assert found == ({} if expected is None else {"lang_to_id": expected})
    assert not language_settings(next(own for own in FAMILIES if own.model_type == family), None, 100)
