"""T5Gemma 2 (Zhang et al. 2025): Gemma 3's layers on both sides, and one softmax over source and output in the decoder
(merged attention). Text alone: its encoder's images are not taken.

A layer of the decoder projects the source by the weights of its self-attention. Keys have a norm in both parts. Only
the output has positions, which are rotated (RoPE), and windows count it alone. The encoder's window reaches both ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from tightbeam.export.families.base import WeightNumbers, head_errors, size_errors
from tightbeam.export.families.causal import Causal
from tightbeam.export.families.text.t5gemma import T5GemmaLike
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.caches.cost import WeightCounts

__all__ = ["T5GEMMA2", "T5GEMMA2_PARTS"]

T5GEMMA2_PARTS = ("t5gemma2_encoder", "t5gemma2_text", "t5gemma2_decoder")
"""``model_type`` of the configs of the encoder, of its text part, and of the decoder."""
SIDE = Causal(model_type="t5gemma2_text", architecture="T5Gemma2Model", activation="hidden_activation", key_norm=True)
"""A side's sizes and RoPE, as of a decoder-only model."""


@dataclass(frozen=True, kw_only=True)
class T5Gemma2Like(T5GemmaLike):
    """An encoder-decoder with merged attention, whose sides have configs of their own and one width."""

    side: Causal = SIDE

    def sides(self, config: Any) -> tuple[tuple[str, Any], ...]:
        encoder = getattr(config, "encoder", None)
        text = getattr(encoder, "text_config", None)
        return ("encoder.text_config", text), ("decoder", getattr(config, "decoder", None))

    def sizes_errors(self, config: Any) -> Iterator[str]:
        errors = []
        for name, side in self.sides(config):
            if side is None or isinstance(side, str | int | float | list | dict):
                errors.append(f"{name} is {side!r}; expected the config of that part")
                continue
            found = [*size_errors(side, ("num_key_value_heads", "head_dim")), *SIDE.sizes_errors(side)]
            found += [] if found else head_errors(side, "hidden_size", "num_attention_heads")  # as transformers checks
            errors += [f"{name}: {reason}" for reason in dict.fromkeys(found)]
        yield from errors
        if errors:
            return
        (_, encoder), (_, decoder) = self.sides(config)
        for field in ("hidden_size", "vocab_size"):
            ours, theirs = getattr(encoder, field), getattr(decoder, field)
            if ours != theirs:
                yield f"{field} is {ours} in the encoder and {theirs} in the decoder; expected one number"

    def sizes(self, config: Any) -> Sizes:
        encoder, decoder = (SIDE.sizes(side) for _, side in self.sides(config))
        return replace(decoder, max_source=encoder.max_target, decoder_only=False, merged=True)

    def weights(self, config: Any) -> WeightNumbers:
        encoder, decoder = (SIDE.weights(side).products for _, side in self.sides(config))
        sizes = self.sizes(config)
        tables = 0 if config.tie_word_embeddings else 2 * sizes.D * sizes.vocabulary
        return WeightNumbers(encoder.encoder + decoder.decoder + tables, WeightCounts(encoder.encoder, decoder.decoder))

    def attention_interface(self, model: Any) -> AbstractContextManager[None]:
        from tightbeam.export.tracing.text.t5gemma2 import attention_interface

        return attention_interface()

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.text.t5gemma2 import trace_t5gemma2

        return trace_t5gemma2(model, sizes)


T5GEMMA2 = T5Gemma2Like(
    model_type="t5gemma2",
    architecture="T5Gemma2ForConditionalGeneration",
    aliases={f"t5gemma-2-{size}": f"google/t5gemma-2-{size}" for size in ("270m-270m", "1b-1b", "4b-4b")},
)
