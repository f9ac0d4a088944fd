"""M2M-100 (Fan et al. 2020) and NLLB-200 (NLLB team 2022): translators of many languages, with computed positions.

The layers are mBART's. Positions count the tokens that are not pad tokens; a pad token has no position, and an
embedding of zeros. The table of positions is a buffer that no checkpoint stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tightbeam.export.families.bart_like import BartLike
from tightbeam.graph_passes import ModelGraphs, Sizes

LAST_PAD = 1
"""Largest pad token; transformers counts positions from it, and its table has two rows more than positions."""


@dataclass(frozen=True, kw_only=True)
class M2M100Like(BartLike):
    """BART's names and layers, with a head that has no bias."""

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from super().config_errors(config)
        if config.pad_token_id not in range(LAST_PAD + 1):
            yield f"pad_token_id is {config.pad_token_id}; transformers counts positions from it: expected {LAST_PAD}"

    def position_rows(self, config: Any) -> int:
        return 0  # buffers, not weights

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.text.m2m_100 import trace_m2m_100

        return trace_m2m_100(model, sizes)


M2M_100 = M2M100Like(
    model_type="m2m_100",
    architecture="M2M100ForConditionalGeneration",
    position_offset=2,
    languages="__([a-z]{2,3})__|([a-z]{3}_[A-Z][a-z]{3})",
    aliases={
        "m2m100_418M": "facebook/m2m100_418M",
        "m2m100_1.2B": "facebook/m2m100_1.2B",
        "nllb-200-distilled-600M": "facebook/nllb-200-distilled-600M",
        "nllb-200-distilled-1.3B": "facebook/nllb-200-distilled-1.3B",
        "nllb-200-1.3B": "facebook/nllb-200-1.3B",
        "nllb-200-3.3B": "facebook/nllb-200-3.3B",
    },
)
