"""Gemma 2 (Gemma team 2024): Gemma with a window in every other layer, norms after each branch, and caps of the scores
of attention and of the logits.

transformers runs it through the attention that its own module has, since torch's has no cap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from tightbeam.export.families.causal import Causal

__all__ = ["GEMMA2", "Gemma2", "cap_errors"]


class Gemma2(Causal):
    """Llama's structure with two kinds of layers; attention in both directions is refused."""

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from super().config_errors(config)
        if config.use_bidirectional_attention:
            yield "use_bidirectional_attention is true; expected a model that generates from left to right"
        yield from cap_errors(config)

    def attention_interface(self, model: Any) -> AbstractContextManager[None]:
        from tightbeam.export.tracing.gemma2 import attention_interface

        return attention_interface(model)


def cap_errors(config: Any) -> Iterator[str]:
    """Clauses for a scale or caps of the scores and logits that are no numbers above 0; there may be no caps."""
    for name in ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"):
        value = getattr(config, name)
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
        if not number and (value is not None or name == "query_pre_attn_scalar"):
            yield f"{name} is {value!r}; expected a number above 0"


GEMMA2 = Gemma2(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    activation="hidden_activation",
    aliases={f"gemma-2-{size}": f"google/gemma-2-{size}" for size in ("2b", "2b-it", "9b", "9b-it", "27b", "27b-it")},
)
