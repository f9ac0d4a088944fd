"""Codes of a model's languages, and the language of a text among them."""

from __future__ import annotations

import pytest

from tightbeam.deploy.errors import InputError
from tightbeam.deploy.text.languages import likely_languages, short_codes

NLLB = ["eng_Latn", "zho_Hans", "zho_Hant", "arb_Arab", "nob_Latn", "nno_Latn", "aka_Latn", "twi_Latn", "zsm_Latn"]
TEXTS = {
    "en": "Where is the old bridge of this town?",
    "zh-Hans": "这座城市的老桥在哪里",
    "ar": "أين الجسر القديم في هذه المدينة؟",
    "nb": "Dette er en setning på norsk.",
    "nn": "Eg veit ikkje kvar den gamle brua er, men dei seier ho er her.",
}


def test_codes_of_languages_are_the_shortest_that_differ() -> None:
    assert short_codes(["en_XX", "de_DE", "zh_CN"]) == {"en": "en_XX", "de": "de_DE", "zh": "zh_CN"}
    assert short_codes(["en", "__de__", "no code!"]) == {"en": "en", "de": "__de__", "no code!": "no code!"}
    codes = ["en", "zh-Hans", "zh-Hant", "ar", "nb", "nn", "ak", "tw", "ms"]
    assert short_codes(NLLB) == dict(zip(codes, NLLB, strict=True))


@pytest.mark.parametrize("code", TEXTS)
def test_the_language_of_a_text_has_the_code_of_the_model(code: str) -> None:
    pytest.importorskip("py3langid")
    first, second, *_ = likely_languages([TEXTS[code]], short_codes(NLLB))
    assert first.code == code and 1 >= first.probability > second.probability
    assert sum(each.probability for each in likely_languages([TEXTS[code]], ["en"])) <= 1


def test_a_text_without_a_language_is_refused() -> None:
    pytest.importorskip("py3langid")
    with pytest.raises(InputError, match=r"no letter.*pass the source language"):
        likely_languages(["12", "..."], ["en"])
    with pytest.raises(InputError, match="knows none of these"):
        likely_languages(["a town"], ["tlh"])
