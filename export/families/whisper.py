"""Whisper (Radford et al. 2022): a speech model over a window of 30 s, given as a log-mel spectrogram.

The encoder takes the window whole, silence included, so there is no mask: N is max_source_positions, always. The
operators of a variant take one of ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from tightbeam.export.families.bart_like import bart_errors
from tightbeam.export.families.base import Family, square_sizes
from tightbeam.export.tracing.encoder_decoder import ModelStep, PositionTable, trace_decoder
from tightbeam.export.tracing.torch_export import trace_module
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.canonical.encoder_decoder import canonicalise_encoder_decoder
from tightbeam.graph_passes.canonical.fold_scales import fold_scales

FRAMES_PER_POSITION = 2
"""The stride of the encoder's second convolution; that of the first is 1."""
SIZES = ("d_model", "vocab_size", "num_mel_bins", "max_source_positions", "max_target_positions")


@dataclass(frozen=True, kw_only=True)
class WhisperLike(Family):
    """A speech model: an encoder over features [B, mels, frames], a decoder with BART's names."""

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from bart_errors(config, SIZES, self.architecture)

    def sizes(self, config: Any) -> Sizes:
        return square_sizes(config, config.max_source_positions, config.max_target_positions)

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        B, mels, frames = 3, model.config.num_mel_bins, FRAMES_PER_POSITION * sizes.max_source
        encoder = trace_module(
            FeatureStep(model.get_encoder()),
            (torch.randn((B, mels, frames), generator=torch.Generator().manual_seed(0)),),
            ({0: Dim("B", min=1)},),
            {"input_features": ("B", mels, frames)},
            {"encoder_hidden_states": ("B", sizes.max_source, sizes.D)},
        )
        decoder = model.get_decoder()
        with PositionTable(decoder.embed_positions, 0).in_place_of(decoder) as positions:
            graphs = ModelGraphs(encoder, trace_decoder(ModelStep(model, [positions]), sizes), sizes)
        fold_scales(graphs)
        canonicalise_encoder_decoder(graphs)
        return graphs


class FeatureStep(nn.Module):
    """The encoder over features float32 [B, mels, frames]."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_features: Tensor) -> Tensor:
        states: Tensor = self.encoder(input_features).last_hidden_state  # [B, N, D]
        return states


_SIZES = ("tiny", "base", "small", "medium")

WHISPER = WhisperLike(
    model_type="whisper",
    architecture="WhisperForConditionalGeneration",
    feature_config="preprocessor_config.json",
    aliases={
        **{f"whisper-{size}": f"openai/whisper-{size}" for size in _SIZES},
        **{f"whisper-{size}.en": f"openai/whisper-{size}.en" for size in _SIZES},
        **{f"whisper-large{version}": f"openai/whisper-large{version}" for version in ("", "-v2", "-v3", "-v3-turbo")},
        **{f"distil-{name}": f"distil-whisper/distil-{name}" for name in ("small.en", "medium.en", "large-v3")},
    },
)
