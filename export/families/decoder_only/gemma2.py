"""Gemma 2 (Gemma team 2024): Gemma with a window in every other layer, norms after each branch, and caps of the scores
of attention and of the logits.

transformers runs it through the attention that its own module has, since torch's has no cap.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from tightbeam.export.families.causal import Causal, cap_errors

__all__ = ["GEMMA2", "Gemma2"]


class Gemma2(Causal):
    """Llama's structure with two kinds of layers; attention in both directions is refused."""

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from super().config_errors(config)
        if config.use_bidirectional_attention:
            yield "use_bidirectional_attention is true; expected a model that generates from left to right"
        yield from cap_errors(config)

    def attention_interface(self, model: Any) -> AbstractContextManager[None]:
        from tightbeam.export.tracing.capped_attention import attention_interface

        return attention_interface(model)


GEMMA2 = Gemma2(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    activation="hidden_activation",
    aliases={f"gemma-2-{size}": f"google/gemma-2-{size}" for size in ("2b", "2b-it", "9b", "9b-it", "27b", "27b-it")},
)
