"""Pegasus (Zhang et al. 2019): BART's layers with the normalisation first and computed positions."""

from __future__ import annotations

from tightbeam.export.families.bart_like import SINUSOIDAL_TABLES, BartLike

PEGASUS = BartLike(
    model_type="pegasus",
    architecture="PegasusForConditionalGeneration",
    position_offset=0,
    computed_weights=SINUSOIDAL_TABLES,
    aliases={
        "pegasus-large": "google/pegasus-large",
        "pegasus-xsum": "google/pegasus-xsum",
        "pegasus-cnn_dailymail": "google/pegasus-cnn_dailymail",
        "pegasus-multi_news": "google/pegasus-multi_news",
        "pegasus-newsroom": "google/pegasus-newsroom",
        "pegasus-pubmed": "google/pegasus-pubmed",
        "pegasus-arxiv": "google/pegasus-arxiv",
    },
)
