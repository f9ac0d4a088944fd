"""Speech2Text (Wang et al. 2020): a speech model over filter bank features of a recording, of any length.

Strided convolutions, each followed by a gate, make N positions of X frames; the layers are BART's with the norm first,
positions sinusoidal and computed. The convolutions read zeros behind a recording; a padded batch has frames there, so
recordings of different lengths are encoded one by one. The first position follows the pad token's id in the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tightbeam.export.families.bart_like import bart_errors, bart_sizes_errors, bart_weights
from tightbeam.export.families.base import Convolution, Family, WeightNumbers, square_sizes
from tightbeam.graph_passes import ModelGraphs, Sizes

STRIDE = 2
BESIDE_POSITIONS = 2
"""Rows of the table of positions beyond the number of positions."""
SIZES = (
    *("d_model", "vocab_size", "max_source_positions", "max_target_positions"),
    *("num_conv_layers", "conv_channels", "input_feat_per_channel", "input_channels"),
)


@dataclass(frozen=True, kw_only=True)
class SpeechToText(Family):
    """A speech model: an encoder over features [B, X, mels], a decoder with BART's names."""

    def sizes_errors(self, config: Any) -> Iterator[str]:
        errors = list(bart_sizes_errors(config, SIZES))
        yield from errors
        if errors:
            return
        kernels = config.conv_kernel_sizes
        odd = isinstance(kernels, list | tuple) and all(type(kernel) is int and kernel % 2 for kernel in kernels)
        if not odd or len(kernels) != config.num_conv_layers:
            yield f"conv_kernel_sizes is {kernels!r}; expected {config.num_conv_layers} odd numbers, one a convolution"
        if config.conv_channels % 2:
            yield f"conv_channels is {config.conv_channels}; expected an even number, half of which are gates"
        pad = config.pad_token_id
        if type(pad) is not int or not 0 <= pad < config.max_target_positions:
            most = config.max_target_positions - 1
            yield f"pad_token_id is {pad!r}; expected 0 to {most}, since positions count from it"

    def config_errors(self, config: Any) -> Iterator[str]:
        errors = list(self.sizes_errors(config))
        yield from errors
        if not errors:
            yield from bart_errors(config, self.architecture)

    def sizes(self, config: Any) -> Sizes:
        most = int(config.max_target_positions)
        # Rows behind the pad token's; transformers fails beyond.
        return square_sizes(
            config, config.max_source_positions, min(most, most + BESIDE_POSITIONS - 1 - int(config.pad_token_id))
        )

    def convolutions(self, config: Any) -> tuple[Convolution, ...]:
        return tuple((kernel, STRIDE, kernel // 2) for kernel in config.conv_kernel_sizes)

    def recording_rows(self, config: Any) -> tuple[int, ...]:
        return (int(config.input_feat_per_channel) * int(config.input_channels),)

    def weights(self, config: Any) -> WeightNumbers:
        sizes = self.sizes(config)
        (width,), count = self.recording_rows(config), 0
        for index, kernel in enumerate(config.conv_kernel_sizes):
            last = index == config.num_conv_layers - 1
            count += kernel * width * (2 * sizes.D if last else int(config.conv_channels))
            width = int(config.conv_channels) // 2
        return bart_weights(config, sizes, rows=0, numbers=count)

    def attention_interface(self, model: Any) -> AbstractContextManager[None]:
        from tightbeam.export.tracing.attention_named import standard_attention

        return standard_attention(model)

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.speech.speech_to_text import trace_speech_to_text

        return trace_speech_to_text(model, sizes)


_SIZES = ("small", "medium", "large")
_LANGUAGES = ("de", "es", "fr", "it", "nl", "pt", "ro", "ru")

SPEECH_TO_TEXT = SpeechToText(
    model_type="speech_to_text",
    architecture="Speech2TextForConditionalGeneration",
    feature_config="preprocessor_config.json",
    whole_recordings=True,
    aliases={
        **{f"s2t-{size}-librispeech-asr": f"facebook/s2t-{size}-librispeech-asr" for size in _SIZES},
        **{f"s2t-small-mustc-en-{other}-st": f"facebook/s2t-small-mustc-en-{other}-st" for other in _LANGUAGES},
        "s2t-medium-mustc-multilingual-st": "facebook/s2t-medium-mustc-multilingual-st",
    },
)
