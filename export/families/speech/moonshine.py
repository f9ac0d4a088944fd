"""Moonshine (Jeffries et al. 2024): a speech model over the samples of a recording, of any length, without windows.

Three strided convolutions make N positions of X samples, and both sides rotate their positions (RoPE). A norm of the
encoder is over a whole recording, padding included, so recordings of different lengths are encoded one by one.
transformers sets no limit to the encoder's positions. A bundle needs one: ``LONGEST_S``, about twice the 30 s that the
model was trained for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tightbeam.export.families.base import (
    Convolution,
    Family,
    WeightNumbers,
    activation_errors,
    encoder_decoder_errors,
    head_errors,
    positions_of,
    size_errors,
    square_sizes,
)
from tightbeam.export.families.causal import rope_errors
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.caches.cost import WeightCounts

LONGEST_S = 64
RATE_HZ = 16000
CONVOLUTIONS: tuple[Convolution, ...] = ((127, 64, 0), (7, 3, 0), (3, 2, 0))
SIDES = ("encoder", "decoder")
COUNTS = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings")


@dataclass(frozen=True, kw_only=True)
class MoonshineLike(Family):
    """A speech model: an encoder over samples [B, X], a decoder with rotary positions."""

    def sizes_errors(self, config: Any) -> Iterator[str]:
        heads = [f"{side}_num_key_value_heads" for side in SIDES]
        optional = [name for name in heads if getattr(config, name, None) is None]
        names = [*SIZES, *(f"{side}_{count}" for side in SIDES for count in COUNTS)]
        errors = list(size_errors(config, tuple(name for name in names if name not in optional)))
        yield from errors
        if errors:
            return
        yield from head_errors(config, "hidden_size", "decoder_num_attention_heads")
        H = config.decoder_num_attention_heads
        for name in ("encoder_num_attention_heads", *heads):
            if name not in optional and getattr(config, name) != H:
                yield (
                    f"{name} is {getattr(config, name)}, decoder_num_attention_heads is {H}; transformers runs this "
                    "model with one number of heads alone"
                )

    def config_errors(self, config: Any) -> Iterator[str]:
        errors = list(self.sizes_errors(config))
        yield from errors
        if errors:
            return
        for side in SIDES:
            yield from activation_errors(config, f"{side}_hidden_act")
        yield from rope_errors(getattr(config, "rope_parameters", None) or {})
        yield from encoder_decoder_errors(config, self.architecture)

    def sizes(self, config: Any) -> Sizes:
        longest = positions_of(LONGEST_S * RATE_HZ, CONVOLUTIONS)
        return square_sizes(
            config,
            longest,
            config.max_position_embeddings,
            width="hidden_size",
            heads="decoder_num_attention_heads",
            layers="decoder_num_hidden_layers",
            rotary=True,
        )

    def convolutions(self, config: Any) -> tuple[Convolution, ...]:
        return CONVOLUTIONS

    def weights(self, config: Any) -> WeightNumbers:
        sizes, inner = self.sizes(config), int(config.intermediate_size)
        D, square = sizes.D, sizes.D**2
        (first, *_), (second, *_), (third, *_) = CONVOLUTIONS
        convolutions = first * D + 2 * second * square + 2 * third * square
        encoder = int(config.encoder_num_hidden_layers) * (4 * square + 2 * D * inner)
        decoder = sizes.L * (6 * square + 3 * D * inner)
        head = D * sizes.vocabulary
        total = convolutions + encoder + decoder + sizes.L * 2 * square + head
        if not config.tie_word_embeddings:
            total += head
        return WeightNumbers(total, WeightCounts(encoder, decoder + head))

    def attention_interface(self, model: Any) -> AbstractContextManager[None]:
        from tightbeam.export.tracing.speech.moonshine import unpadded_heads

        return unpadded_heads(model)

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.speech.moonshine import trace_moonshine

        return trace_moonshine(model, sizes)


MOONSHINE = MoonshineLike(
    model_type="moonshine",
    architecture="MoonshineForConditionalGeneration",
    feature_config="preprocessor_config.json",
    whole_recordings=True,
    aliases={f"moonshine-{size}": f"UsefulSensors/moonshine-{size}" for size in ("tiny", "base")},
)
