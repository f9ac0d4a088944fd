"""FSMT (Ng et al. 2019), fairseq's WMT19 translators: two vocabularies, computed positions, attention of its own.

Its attention in transformers computes the formula itself, positions first. ``export/tracing/text/fsmt.py`` replaces it
by an attention through transformers' attention interface.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from tightbeam.export.families.bart_like import SINUSOIDAL_TABLES, BartLike, bart_weights
from tightbeam.export.families.base import WeightNumbers
from tightbeam.graph_passes import ModelGraphs, Sizes


@dataclass(frozen=True, kw_only=True)
class FsmtLike(BartLike):
    """BART with another attention, other positions, and a head that is part of the decoder."""

    def sizes(self, config: Any) -> Sizes:
        vocabulary, source_vocabulary = int(config.tgt_vocab_size), int(config.src_vocab_size)
        return replace(super().sizes(config), vocabulary=vocabulary, source_vocabulary=source_vocabulary)

    def weights(self, config: Any) -> WeightNumbers:
        sizes = self.sizes(config)
        own_table = 0 if config.tie_word_embeddings else sizes.D * sizes.vocabulary
        return bart_weights(config, sizes, rows=self.position_rows(config), numbers=own_table)

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.text.fsmt import trace_fsmt

        return trace_fsmt(model, sizes)

    def attention_interface(self, model: Any) -> AbstractContextManager[None]:
        from tightbeam.export.tracing.text.fsmt import attention_interface

        return attention_interface()


FSMT = FsmtLike(
    model_type="fsmt",
    architecture="FSMTForConditionalGeneration",
    position_offset=2,
    computed_weights=SINUSOIDAL_TABLES,
    aliases={f"wmt19-{pair}": f"facebook/wmt19-{pair}" for pair in ("en-de", "de-en", "en-ru", "ru-en")},
)
