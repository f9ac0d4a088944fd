"""Marian (Junczys-Dowmunt et al. 2018), as in the OPUS-MT translators: computed positions, stored nowhere."""

from __future__ import annotations

from tightbeam.export.families.bart_like import SINUSOIDAL_TABLES, BartLike

_PAIRS = (
    "en-de",
    "de-en",
    "en-fr",
    "fr-en",
    "en-es",
    "es-en",
    "en-it",
    "it-en",
    "en-nl",
    "nl-en",
    "en-ru",
    "ru-en",
    "en-zh",
    "zh-en",
)

MARIAN = BartLike(
    model_type="marian",
    architecture="MarianMTModel",
    position_offset=0,
    computed_weights=SINUSOIDAL_TABLES,
    aliases={f"opus-mt-{pair}": f"Helsinki-NLP/opus-mt-{pair}" for pair in _PAIRS},
)
