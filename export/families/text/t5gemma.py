"""T5Gemma (Zhang et al. 2025): an encoder and a decoder of Gemma 2's layers, which may have other widths and heads.

Both sides rotate their positions (RoPE), cap their scores, share key heads and have windows in some layers. The
encoder's window reaches both ways, |query - key| <= window; cross-attention has no positions and no window.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from tightbeam.export.families.base import Family, WeightNumbers, encoder_decoder_errors, head_errors, size_errors
from tightbeam.export.families.causal import Causal, cap_errors
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.caches.cost import WeightCounts

__all__ = ["T5GEMMA", "T5GEMMA_PART", "T5GemmaLike"]

T5GEMMA_PART = "t5_gemma_module"
"""``model_type`` of either side's config."""
SIDE = Causal(model_type=T5GEMMA_PART, architecture="T5GemmaModel", activation="hidden_activation")
"""A side's sizes and RoPE, as of a decoder-only model."""
LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, kw_only=True)
class T5GemmaLike(Family):
    """An encoder-decoder whose sides have configs of their own."""

    side: Causal = SIDE

    def sides(self, config: Any) -> tuple[tuple[str, Any], ...]:
        """The names and the configs of encoder and decoder."""
        return tuple((name, getattr(config, name, None)) for name in ("encoder", "decoder"))

    def sizes_errors(self, config: Any) -> Iterator[str]:
        for name, side in self.sides(config):
            if side is None or isinstance(side, str | int | float | list):
                yield f"{name} is {side!r}; expected the config of that side"
                continue
            errors = [*size_errors(side, ("num_key_value_heads",)), *SIDE.sizes_errors(side)]
            if not errors and side.head_dim is not None:
                errors += head_errors(side, "hidden_size", "num_attention_heads")  # as transformers checks it
            yield from (f"{name}: {reason}" for reason in errors)

    def config_errors(self, config: Any) -> Iterator[str]:
        errors = list(self.sizes_errors(config))
        yield from errors
        if errors:
            return
        for name, side in self.sides(config):
            found = [*self.side.config_errors(side), *cap_errors(side), *_layer_errors(side)]
            yield from (f"{name}: {reason}" for reason in found)
        yield from encoder_decoder_errors(config, self.architecture)

    def sizes(self, config: Any) -> Sizes:
        encoder, decoder = SIDE.sizes(config.encoder), SIDE.sizes(config.decoder)
        return replace(
            decoder,
            source_vocabulary=encoder.vocabulary,
            max_source=encoder.max_target,
            decoder_only=False,
            source_width=None if encoder.D == decoder.D else encoder.D,
        )

    def weights(self, config: Any) -> WeightNumbers:
        sizes = self.sizes(config)
        encoder, decoder = SIDE.weights(config.encoder), SIDE.weights(config.decoder)
        queries_and_outputs = sizes.L * sizes.D * sizes.H * (sizes.K + sizes.V)
        source = sizes.L * sizes.source_D * sizes.G * (sizes.K + sizes.V)
        head = sizes.D * sizes.vocabulary
        tables = sizes.source_vocabulary * sizes.source_D + (0 if config.tie_word_embeddings else head)
        step = decoder.products.decoder + queries_and_outputs
        return WeightNumbers(
            encoder.products.encoder + source + step + tables, WeightCounts(encoder.products.encoder, step)
        )

    def attention_interface(self, model: Any) -> AbstractContextManager[None]:
        from tightbeam.export.tracing.capped_attention import attention_interface

        return attention_interface(model)

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.text.t5gemma import trace_t5gemma

        return trace_t5gemma(model, sizes)


def _layer_errors(side: Any) -> Iterator[str]:
    """Clauses for values with which transformers runs neither side."""
    if side.sliding_window is None:  # whose masks it makes, whether a layer reads them or not
        yield "sliding_window is None; transformers runs this model with a window alone"
    if others := sorted({*side.layer_types} - {*LAYER_TYPES}):
        yield f"layer_types has {others[0]!r}; expected {' and '.join(LAYER_TYPES)} alone"


T5GEMMA = T5GemmaLike(
    model_type="t5gemma",
    architecture="T5GemmaForConditionalGeneration",
    aliases={
        f"t5gemma-{size}-{trained}": f"google/t5gemma-{size}-{trained}"
        for size in ("2b-2b", "9b-2b", "9b-9b", "s-s", "b-b", "l-l", "ml-ml", "xl-xl")
        for trained in ("prefixlm", "prefixlm-it", "ul2", "ul2-it")
    },
)
