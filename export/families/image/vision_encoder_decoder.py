"""Image to text: an encoder of images beside a decoder of text (transformers' VisionEncoderDecoderModel).

TrOCR (Li et al. 2021) has a ViT or DeiT and a decoder of BART's layers, Donut (Kim et al. 2022) a Swin transformer and
mBART's decoder. Images are resized to one size, so that there is no mask: N is the number of the encoder's positions,
always. The encoder may have another width than the decoder (``Sizes.source_width``), or a projection to the decoder's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tightbeam.export.families.base import (
    Family,
    WeightNumbers,
    activation_errors,
    head_errors,
    size_errors,
    square_sizes,
)
from tightbeam.export.families.image_encoders import ENCODERS, encoder_weights, image_size, positions_of
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.caches.cost import WeightCounts

DECODERS = {"trocr": 2, "mbart": 2}
"""Decoders, and the row of their table of learned positions that holds position 0."""
PARTS = (*ENCODERS, *DECODERS)
"""Types of model that this one is made of."""
DECODER_SIZES = ("d_model", "vocab_size", "max_position_embeddings", "decoder_layers", "decoder_attention_heads")


@dataclass(frozen=True, kw_only=True)
class VisionEncoderDecoder(Family):
    """Any of the encoders beside any of the decoders."""

    def sizes_errors(self, config: Any) -> Iterator[str]:
        for side, known in (("encoder", ENCODERS), ("decoder", DECODERS)):
            model_type = getattr(getattr(config, side, None), "model_type", None)
            if model_type not in list(known):
                yield f"{side}.model_type is {model_type!r}; image to text is supported with {', '.join(known)}"
                return
        encoder, decoder = config.encoder, config.decoder
        errors = [f"encoder: {reason}" for reason in ENCODERS[encoder.model_type].errors(encoder)]
        errors += [f"decoder: {reason}" for reason in size_errors(decoder, (*DECODER_SIZES, "decoder_ffn_dim"))]
        yield from errors
        if errors:
            return
        yield from (f"decoder: {reason}" for reason in head_errors(decoder, "d_model", "decoder_attention_heads"))
        own = getattr(decoder, "cross_attention_hidden_size", None)
        width = ENCODERS[encoder.model_type].width(encoder)
        if own is not None and own != width:
            yield f"decoder.cross_attention_hidden_size is {own!r}, the encoder is {width} wide; correct one of them"

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from self.sizes_errors(config)
        yield from (f"decoder: {reason}" for reason in activation_errors(config.decoder, "activation_function"))
        for field in ("is_decoder", "add_cross_attention"):
            if not getattr(config.decoder, field, False):
                yield f"decoder.{field} is false; the decoder reads the image by attention to the encoder"

    def attention(self, model_class: Any) -> str | None:
        return None  # transformers chooses for each side by what it has

    def sizes(self, config: Any) -> Sizes:
        encoder, decoder = config.encoder, config.decoder
        width = ENCODERS[encoder.model_type].width(encoder)
        projected = getattr(decoder, "cross_attention_hidden_size", None) is None
        other = None if projected or width == decoder.d_model else width
        return square_sizes(decoder, positions_of(encoder), decoder.max_position_embeddings, source_width=other)

    def weights(self, config: Any) -> WeightNumbers:
        sizes, encoder, decoder = self.sizes(config), config.encoder, config.decoder
        D, S = sizes.D, sizes.source_D
        width = ENCODERS[encoder.model_type].width(encoder)
        projection = width * D if S == D != width else 0
        layers, tables = encoder_weights(encoder)
        step = sizes.L * (6 * D * D + 2 * D * int(decoder.decoder_ffn_dim)) + D * sizes.vocabulary
        source = sizes.L * 2 * S * D
        computed = not getattr(decoder, "use_learned_position_embeddings", True)
        rows = 0 if computed else sizes.max_target + DECODERS[decoder.model_type]
        tables += D * rows + (0 if decoder.tie_word_embeddings else D * sizes.vocabulary)
        return WeightNumbers(layers + projection + source + step + tables, WeightCounts(layers + projection, step))

    def complete(self, model: Any) -> None:
        # transformers 5.24 computes TrOCR's table of sinusoidal positions while weights are not there yet, as a tensor
        # without numbers, and cannot generate with such a model.
        table = model.decoder.model.decoder.embed_positions
        if getattr(table, "weights", None) is not None and table.weights.is_meta:
            table.weights = table.get_embedding(*table.weights.shape, table.padding_idx)

    def attention_interface(self, model: Any) -> Any:
        from tightbeam.export.tracing.image.vision_encoder_decoder import attention_interface

        return attention_interface(model)

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.image.vision_encoder_decoder import trace_vision_encoder_decoder

        encoder = model.config.encoder
        shape = (encoder.num_channels, *image_size(encoder))
        return trace_vision_encoder_decoder(model, sizes, shape, DECODERS[model.config.decoder.model_type])


_SIZES, _KINDS = ("small", "base", "large"), ("handwritten", "printed")

VISION_ENCODER_DECODER = VisionEncoderDecoder(
    model_type="vision-encoder-decoder",
    architecture="VisionEncoderDecoderModel",
    image_config="preprocessor_config.json",
    # No position of text reads the encoder's pooled state; published checkpoints of TrOCR lack its weights.
    computed_weights=("encoder.pooler.dense.weight", "encoder.pooler.dense.bias"),
    aliases={
        **{
            f"trocr-{size}-{kind}": f"microsoft/trocr-{size}-{kind}"
            for size in ("small", "base", "large")
            for kind in _KINDS
        },
        "donut-base-finetuned-cord-v2": "naver-clova-ix/donut-base-finetuned-cord-v2",
        "donut-base-finetuned-docvqa": "naver-clova-ix/donut-base-finetuned-docvqa",
        "donut-base-finetuned-rvlcdip": "naver-clova-ix/donut-base-finetuned-rvlcdip",
    },
)
