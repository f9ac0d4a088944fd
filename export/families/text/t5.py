"""T5 (Raffel et al. 2020), T5 1.1, Flan-T5, and the multilingual mT5 (Xue et al. 2021) and UMT5 (Chung et al. 2023).

Positions are relative: a bias on the scores of self-attention by the distance of query and key, in place of an
embedding. Beyond `relative_attention_max_distance` all distances share one bucket, so the model runs at any length, and
transformers sets no limit. A bundle needs one, since its buffers and tables have a size: ``TIMES_TRAINED`` times the
length that the model was trained for, which is `n_positions` of config.json, or else ``TRAINED``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tightbeam.export.families.base import (
    Family,
    WeightNumbers,
    encoder_decoder_errors,
    known_activations,
    size_errors,
)
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.caches.cost import WeightCounts

TRAINED = 512
"""Length in tokens that T5 was trained for."""
TIMES_TRAINED = 4
SIZES = (
    "d_model",
    "d_kv",
    "d_ff",
    "num_layers",
    "num_decoder_layers",
    "num_heads",
    "vocab_size",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
)


@dataclass(frozen=True, kw_only=True)
class T5Like(Family):
    """An encoder-decoder with relative positions; the whole model is traced, scaling before the head included."""

    bias_in_each_layer: bool = False
    """each layer has a bias of its own; otherwise the layers of a side share one"""
    trained: int = TRAINED
    """length in tokens that the model was trained for, if the config does not say"""

    def sizes_errors(self, config: Any) -> Iterator[str]:
        names = [name for name in SIZES if name != "num_decoder_layers" or config.num_decoder_layers is not None]
        errors = list(size_errors(config, tuple(names)))
        yield from errors
        if not errors:
            buckets, reach = config.relative_attention_num_buckets, config.relative_attention_max_distance
            if buckets < 4 or buckets % 2:
                yield f"relative_attention_num_buckets is {buckets}; expected an even number of at least 4"
            elif reach <= buckets // 2:
                yield f"relative_attention_max_distance is {reach}; expected more than half of the {buckets} buckets"
        if getattr(config, "n_positions", None) is not None:
            yield from size_errors(config, ("n_positions",))

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from self.sizes_errors(config)
        if config.dense_act_fn not in (known := known_activations()):
            yield (
                f"feed_forward_proj {config.feed_forward_proj!r} is unknown; expected relu, gated-gelu, or another of "
                f"{', '.join(known)}"
            )
        yield from encoder_decoder_errors(config, self.architecture)

    def sizes(self, config: Any) -> Sizes:
        H, K = int(config.num_heads), int(config.d_kv)
        longest = TIMES_TRAINED * int(getattr(config, "n_positions", None) or self.trained)
        return Sizes(
            D=int(config.d_model),
            H=H,
            G=H,
            K=K,
            V=K,
            L=_decoder_layers(config),
            vocabulary=int(config.vocab_size),
            source_vocabulary=int(config.vocab_size),
            max_source=longest,
            max_target=longest,
        )

    def weights(self, config: Any) -> WeightNumbers:
        sizes = self.sizes(config)
        attention = 4 * sizes.D * sizes.H * sizes.K
        gated = str(config.feed_forward_proj).startswith("gated")
        feed_forward = (3 if gated else 2) * sizes.D * int(config.d_ff)
        encoder = int(config.num_layers) * (attention + feed_forward)
        decoder = sizes.L * (attention + attention // 2 + feed_forward)
        head = sizes.D * sizes.vocabulary
        tables = int(config.relative_attention_num_buckets) * sizes.H
        tables *= int(config.num_layers) + sizes.L if self.bias_in_each_layer else 2
        total = encoder + decoder + sizes.L * attention // 2 + head + tables
        return WeightNumbers(total, WeightCounts(encoder, decoder + head))

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.encoder_decoder import EncoderStep, ModelStep, trace_encoder_decoder
        from tightbeam.export.tracing.relative_positions import SourceBias, StepBias, attentions_with_bias, biases_from

        encoder, decoder = model.get_encoder(), model.get_decoder()
        source = {attention: SourceBias(attention) for attention in attentions_with_bias(encoder)}
        own = {attention: StepBias(attention, sizes.max_target) for attention in attentions_with_bias(decoder)}
        with biases_from({**source, **own}):
            return trace_encoder_decoder(EncoderStep(encoder), ModelStep(model, list(own.values())), sizes)


def _decoder_layers(config: Any) -> int:
    """Number of decoder layers; the encoder's if the config does not say."""
    return int(config.num_layers if config.num_decoder_layers is None else config.num_decoder_layers)


T5 = T5Like(
    model_type="t5",
    architecture="T5ForConditionalGeneration",
    aliases={
        "t5-small": "google-t5/t5-small",
        "t5-base": "google-t5/t5-base",
        "t5-large": "google-t5/t5-large",
        "t5-3b": "google-t5/t5-3b",
        "flan-t5-small": "google/flan-t5-small",
        "flan-t5-base": "google/flan-t5-base",
        "flan-t5-large": "google/flan-t5-large",
        "flan-t5-xl": "google/flan-t5-xl",
        "flan-t5-xxl": "google/flan-t5-xxl",
    },
)
MT5 = T5Like(
    model_type="mt5",
    architecture="MT5ForConditionalGeneration",
    aliases={f"mt5-{size}": f"google/mt5-{size}" for size in ("small", "base", "large", "xl", "xxl")},
)
UMT5 = T5Like(
    model_type="umt5",
    architecture="UMT5ForConditionalGeneration",
    bias_in_each_layer=True,
    aliases={f"umt5-{size}": f"google/umt5-{size}" for size in ("small", "base", "xl", "xxl")},
)
