"""Tracing of Whisper: its encoder over features, and its decoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from tightbeam.export.tracing.encoder_decoder import ModelStep, trace_decoder
from tightbeam.export.tracing.positions import PositionTable
from tightbeam.export.tracing.torch_export import trace_module
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.canonical.encoder_decoder import canonicalise_encoder_decoder
from tightbeam.graph_passes.canonical.fold_scales import fold_scales

__all__ = ["trace_whisper"]

FRAMES_PER_POSITION = 2
"""The stride of the encoder's second convolution; the first has stride 1."""


def trace_whisper(model: Any, sizes: Sizes, *, short_audio: bool = False) -> ModelGraphs:
    """The canonical graphs of a Whisper in eval mode; their weights share memory with the model's.

    ``short_audio``: the encoder takes any number X of frames up to a window's.
    """
    B, mels, frames = 3, model.config.num_mel_bins, FRAMES_PER_POSITION * sizes.max_source
    step: nn.Module = FeatureStep(model.get_encoder())
    dynamic: dict[int, Any] = {0: Dim("B", min=1)}
    X: int | str = frames
    N: int | str = sizes.max_source
    if short_audio:
        step = ShortFeatureStep(model.get_encoder())
        dynamic[2] = Dim("X", min=3, max=frames)
        X, N = "X", "N"
    encoder = trace_module(
        step,
        (torch.randn((B, mels, frames), generator=torch.Generator().manual_seed(0)),),
        (dynamic,),
        {"input_features": ("B", mels, X)},
        {"encoder_hidden_states": ("B", N, sizes.D)},
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


class ShortFeatureStep(nn.Module):
    """The encoder over features float32 [B, mels, X], with its first N positions.

    That of transformers takes a whole window alone, for which both give the same numbers.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_features: Tensor) -> Tensor:
        encoder = self.encoder
        states = nn.functional.gelu(encoder.conv1(input_features))
        states = nn.functional.gelu(encoder.conv2(states)).permute(0, 2, 1)
        states = states + encoder.embed_positions.weight[: states.shape[1]]
        for layer in encoder.layers:
            states = layer(states, None)
        normalised: Tensor = encoder.layer_norm(states)  # [B, N, D]
        return normalised
