"""Cohere ASR and Canary: a Fast Conformer (Rekesh et al. 2023) over mel features, beside a decoder of text.

Strided convolutions over time and mels make N positions of X frames. A layer of the encoder has a convolution over
neighbouring positions between two half feed-forward parts, and attention with relative positions. The decoder's layers
have the norm first. That of Cohere ASR projects the encoder's states to its own width, which an export does in the
encoder's graph; that of Canary is as wide as the encoder, and computes its positions. Padding does not change how a
recording is encoded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.caches.cost import WeightCounts

__all__ = ["CANARY", "COHERE_ASR", "FAST_CONFORMER_PARTS"]

FAST_CONFORMER_PARTS = {"encoder_config": "parakeet_encoder", "decoder_config": "canary_decoder"}
"""Fields with the config of a part, and the ``model_type`` of that part."""
SHARED_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
ENCODER_SIZES = (
    *(*SHARED_SIZES, "conv_kernel_size", "subsampling_factor", "subsampling_conv_channels", "num_mel_bins"),
    *("subsampling_conv_kernel_size", "subsampling_conv_stride", "max_position_embeddings"),
)
DECODER_SIZES = (*SHARED_SIZES, "vocab_size", "max_position_embeddings")
ODD = ("conv_kernel_size", "subsampling_conv_kernel_size")


@dataclass(frozen=True, kw_only=True)
class FastConformer(Family):
    """A speech model: an encoder over features [B, X, mels], and a decoder with a table of positions."""

    own_decoder: bool = False
    """the decoder has a config of its own, computed positions, and the encoder's width, without a projection"""

    def sizes_errors(self, config: Any) -> Iterator[str]:
        for name in FAST_CONFORMER_PARTS if self.own_decoder else ("encoder_config",):
            kind, expected = getattr(getattr(config, name, None), "model_type", None), FAST_CONFORMER_PARTS[name]
            if kind != expected:
                yield f"{name}.model_type is {kind!r}; expected {expected!r}, the only kind that is supported"
                return
        errors = [f"encoder_config: {reason}" for reason in _encoder_errors(config.encoder_config)]
        errors += [self._named(reason) for reason in _decoder_errors(self._decoder(config))]
        yield from errors
        if errors or not self.own_decoder:
            return
        width, expected = config.decoder_config.hidden_size, config.encoder_config.hidden_size
        if width != expected:
            yield f"decoder_config: hidden_size is {width}; expected {expected}, the encoder's, whose states it reads"

    def _decoder(self, config: Any) -> Any:
        return config.decoder_config if self.own_decoder else config

    def _named(self, reason: str) -> str:
        return f"decoder_config: {reason}" if self.own_decoder else reason

    def config_errors(self, config: Any) -> Iterator[str]:
        errors = list(self.sizes_errors(config))
        yield from errors
        if errors:
            return
        yield from (f"encoder_config: {reason}" for reason in activation_errors(config.encoder_config, "hidden_act"))
        yield from map(self._named, activation_errors(self._decoder(config), "hidden_act"))
        yield from encoder_decoder_errors(config, self.architecture)

    def sizes(self, config: Any) -> Sizes:
        decoder = self._decoder(config)
        sizes = square_sizes(
            decoder,
            config.encoder_config.max_position_embeddings,
            decoder.max_position_embeddings,
            width="hidden_size",
            heads="num_attention_heads",
            layers="num_hidden_layers",
        )
        width = getattr(decoder, "head_dim", None)
        return sizes if width is None else replace(sizes, K=int(width), V=int(width))

    def convolutions(self, config: Any) -> tuple[Convolution, ...]:
        return _subsampling(config.encoder_config)

    def recording_rows(self, config: Any) -> tuple[int, ...]:
        return (int(config.encoder_config.num_mel_bins),)

    def weights(self, config: Any) -> WeightNumbers:
        sizes, side = self.sizes(config), config.encoder_config
        D, width, channels = sizes.D, int(side.hidden_size), int(side.subsampling_conv_channels)
        layers, subsampling = int(side.num_hidden_layers), self.convolutions(config)
        window = int(side.subsampling_conv_kernel_size) ** 2 * channels
        convolutions = window + (len(subsampling) - 1) * (window + channels**2)
        convolutions += layers * int(side.conv_kernel_size) * width
        biases = layers * 2 * width  # of queries, by head
        # A layer has five matrices in its attention, and two in its convolution, one of them twice as wide.
        encoder = layers * (8 * width**2 + 4 * width * int(side.intermediate_size))
        encoder += channels * positions_of(int(side.num_mel_bins), subsampling) * width
        encoder += 0 if self.own_decoder else width * D
        head, heads = D * sizes.vocabulary, D * sizes.E
        step = sizes.L * (6 * heads + 2 * D * int(self._decoder(config).intermediate_size)) + head
        tables = (0 if self.own_decoder else D * sizes.max_target) + (0 if config.tie_word_embeddings else head)
        total = convolutions + biases + encoder + sizes.L * 2 * heads + step + tables
        return WeightNumbers(total, WeightCounts(encoder, step))

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.speech.fast_conformer import trace_fast_conformer

        return trace_fast_conformer(model, sizes)


def _decoder_errors(decoder: Any) -> Iterator[str]:
    """Clauses for sizes with which the decoder does not run, or is not supported."""
    optional = [name for name in ("num_key_value_heads", "head_dim") if getattr(decoder, name, None) is not None]
    errors = list(size_errors(decoder, (*DECODER_SIZES, *optional)))
    yield from errors
    if errors:
        return
    if "head_dim" not in optional:
        yield from head_errors(decoder, "hidden_size", "num_attention_heads")
    H = decoder.num_attention_heads
    if "num_key_value_heads" in optional and decoder.num_key_value_heads != H:
        yield (
            f"num_key_value_heads is {decoder.num_key_value_heads}, num_attention_heads is {H}; key heads that "
            "query heads share are not supported in this family, make them equal"
        )


def _encoder_errors(encoder: Any) -> Iterator[str]:
    """Clauses for sizes with which transformers' encoder does not run."""
    errors = list(size_errors(encoder, ENCODER_SIZES))
    yield from errors
    if errors:
        return
    yield from head_errors(encoder, "hidden_size", "num_attention_heads")
    if encoder.hidden_size % 2:
        yield f"hidden_size is {encoder.hidden_size}; expected an even number, since positions are sines and cosines"
    for name in ODD:
        if getattr(encoder, name) % 2 == 0:
            yield f"{name} is {getattr(encoder, name)}; expected an odd number"
    factor = encoder.subsampling_factor
    if factor < 2 or factor & (factor - 1):
        yield f"subsampling_factor is {factor}; expected a power of 2 of at least 2"
        return
    mels, convolutions = encoder.num_mel_bins, _subsampling(encoder)
    if positions_of(mels, convolutions) != mels // encoder.subsampling_conv_stride ** len(convolutions):
        yield f"num_mel_bins is {mels}; expected a multiple of {factor}, by which convolutions divide them"


def _subsampling(encoder: Any) -> tuple[Convolution, ...]:
    """The strided convolutions, which are alike over time and over mels."""
    kernel, stride = int(encoder.subsampling_conv_kernel_size), int(encoder.subsampling_conv_stride)
    return ((kernel, stride, (kernel - 1) // 2),) * int(math.log2(encoder.subsampling_factor))


PROMPT = (
    *("<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>", "<|{}|>", "<|{}|>"),
    *("<|pnc|>", "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>"),
)
"""Tokens of language, punctuation and what else an output may have, as transformers' processors give them."""


def _codes(codes: str) -> str:
    """The regular expression of the tokens of these languages; a vocabulary has more than the model has learned."""
    return rf"<\|({'|'.join(codes.split())})\|>"


COHERE_ASR = FastConformer(
    model_type="cohere_asr",
    architecture="CohereAsrForConditionalGeneration",
    feature_config="preprocessor_config.json",
    whole_recordings=True,
    languages=_codes("ar de el en es fr it ja ko nl pl pt vi zh"),
    language_prompt=("▁", *PROMPT),
    aliases={"cohere-transcribe-03-2026": "CohereLabs/cohere-transcribe-03-2026"},
)
CANARY = FastConformer(
    model_type="canary",
    architecture="CanaryForConditionalGeneration",
    feature_config="preprocessor_config.json",
    whole_recordings=True,
    own_decoder=True,
    languages=_codes("bg cs da de el en es et fi fr hr hu it lt lv mt nl pl pt ro ru sk sl sv uk"),
    language_prompt=PROMPT,
    target_at=PROMPT.index("<|{}|>") + 1,
    aliases={"canary-1b-v2": "nvidia/canary-1b-v2"},
)
