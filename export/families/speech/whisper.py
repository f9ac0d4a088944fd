"""Whisper (Radford et al. 2022): a speech model over a window of 30 s, given as a log-mel spectrogram.

The encoder takes the window whole, silence included, so it has no mask, and N is always max_source_positions. The
operators of a variant take a mask of ones. With `short_audio` N is as long as the sound: the encoder has a recording's
own frames, as many for all recordings of a batch, so it needs no mask either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tightbeam.export.families.bart_like import bart_errors, bart_sizes_errors, bart_weights
from tightbeam.export.families.base import Convolution, Family, WeightNumbers, square_sizes
from tightbeam.graph_passes import ModelGraphs, Sizes

CONVOLUTION = 3
"""Frames that each of the encoder's two convolutions reads at once."""
SIZES = ("d_model", "vocab_size", "num_mel_bins", "max_source_positions", "max_target_positions")


@dataclass(frozen=True, kw_only=True)
class WhisperLike(Family):
    """A speech model: an encoder over features [B, mels, frames], a decoder with BART's names."""

    takes_short_audio: bool = True

    def sizes_errors(self, config: Any) -> Iterator[str]:
        yield from bart_sizes_errors(config, SIZES)

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from self.sizes_errors(config)
        yield from bart_errors(config, self.architecture)

    def sizes(self, config: Any) -> Sizes:
        return square_sizes(config, config.max_source_positions, config.max_target_positions)

    def convolutions(self, config: Any) -> tuple[Convolution, ...]:
        return ((CONVOLUTION, 1, 1), (CONVOLUTION, 2, 1)) if self.short_audio else ()

    def weights(self, config: Any) -> WeightNumbers:
        sizes = self.sizes(config)
        convolutions = CONVOLUTION * sizes.D * (int(config.num_mel_bins) + sizes.D)
        return bart_weights(config, sizes, rows=sizes.max_source + sizes.max_target, numbers=convolutions)

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.speech.whisper import trace_whisper

        return trace_whisper(model, sizes, short_audio=self.short_audio)


_SIZES = ("tiny", "base", "small", "medium")

WHISPER = WhisperLike(
    model_type="whisper",
    architecture="WhisperForConditionalGeneration",
    feature_config="preprocessor_config.json",
    beginning=4,  # start token, language, task and <|notimestamps|>
    aliases={
        **{f"whisper-{size}": f"openai/whisper-{size}" for size in _SIZES},
        **{f"whisper-{size}.en": f"openai/whisper-{size}.en" for size in _SIZES},
        **{f"whisper-large{version}": f"openai/whisper-large{version}" for version in ("", "-v2", "-v3", "-v3-turbo")},
        **{f"distil-{name}": f"distil-whisper/distil-{name}" for name in ("small.en", "medium.en", "large-v3")},
    },
)
