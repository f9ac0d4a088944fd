"""Whisper's languages by code, token and name, as transformers takes them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers.models.whisper.tokenization_whisper import LANGUAGES, TO_LANGUAGE_CODE

from tightbeam.deploy.errors import GenerationError
from tightbeam.deploy.generation.languages import CODES, language_token, names_of
from tightbeam.deploy.generation.resolve import resolve_settings

TOKENS = {f"<|{code}|>": 1000 + place for place, code in enumerate(LANGUAGES)}


def test_names_are_those_of_transformers() -> None:
    assert dict(CODES) == TO_LANGUAGE_CODE
    assert names_of(TOKENS) == [f"{code} ({LANGUAGES[code]})" for code in sorted(LANGUAGES)]
    assert names_of(["<|zz|>", "<|en|>"]) == ["en (english)", "zz"]


@pytest.mark.parametrize("write", [str.lower, str.upper, str.title])
def test_a_language_has_a_code_a_token_and_names(write: object) -> None:
    assert callable(write)
    for name, code in TO_LANGUAGE_CODE.items():
        for given in (name, code, f"<|{code}|>"):
            assert language_token(write(given), TOKENS) == TOKENS[f"<|{code}|>"]
    assert language_token("french", {"<|en|>": 5}) is None


@pytest.mark.parametrize("language", ["klingon", "", "xx", "<|en", ["en"], 5])
def test_an_error_lists_every_language(language: object) -> None:
    generation = {"is_multilingual": True, "lang_to_id": TOKENS, "task_to_id": {"transcribe": 1200}}
    generation |= {"decoder_start_token_id": 3, "eos_token_id": 2}
    sizes = SimpleNamespace(vocabulary=1300, max_target=48, decoder_only=False)
    with pytest.raises(GenerationError, match="is not a language of this model, by its code or name") as caught:
        resolve_settings(generation, {"language": language}, sizes, speech=True)
    assert all(f"{code} ({name})" in str(caught.value) for code, name in LANGUAGES.items())


def test_auto_is_left_out() -> None:
    generation = {"is_multilingual": True, "lang_to_id": TOKENS, "decoder_start_token_id": 3, "eos_token_id": 2}
    sizes = SimpleNamespace(vocabulary=1300, max_target=48, decoder_only=False)
    with pytest.raises(GenerationError, match=r"language='auto' .*; leave it out, and the model finds the language$"):
        resolve_settings(generation, {"language": "auto"}, sizes, speech=True)


@pytest.mark.parametrize(("speech", "advice"), [(True, r"did you mean language\?$"), (False, "remove it$")])
def test_a_wrong_name_is_compared_with_the_settings_of_the_model(speech: bool, advice: str) -> None:
    sizes = SimpleNamespace(vocabulary=1300, max_target=48, decoder_only=False)
    with pytest.raises(GenerationError, match=f"langauge='en' .* is not a generation setting; {advice}"):
        resolve_settings({"decoder_start_token_id": 3, "eos_token_id": 2}, {"langauge": "en"}, sizes, speech=speech)
