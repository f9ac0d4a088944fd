"""Tracing of Speech2Text: its encoder over features, and its decoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from tightbeam.export.tracing.attention_named import standard_attention
from tightbeam.export.tracing.encoder_decoder import TextStep, trace_decoder
from tightbeam.export.tracing.positions import M2M100Positions
from tightbeam.export.tracing.torch_export import trace_module
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.canonical.encoder_decoder import canonicalise_encoder_decoder

__all__ = ["trace_speech_to_text"]


def trace_speech_to_text(model: Any, sizes: Sizes) -> ModelGraphs:
    """The canonical graphs of a Speech2Text in eval mode; their weights share memory with the model's."""
    config, decoder = model.config, model.get_decoder()
    B, N = 3, 5
    X, mels = N * 2**config.num_conv_layers, config.input_feat_per_channel * config.input_channels
    mask = torch.ones((B, N), dtype=torch.long)
    mask[1, N // 2 :] = 0
    batch = Dim("B", min=1)
    with standard_attention(model), M2M100Positions(decoder.embed_positions).in_place_of(decoder) as positions:
        encoder = trace_module(
            FrameStep(model.get_encoder(), sizes.max_source),
            (torch.randn((B, X, mels), generator=torch.Generator().manual_seed(0)), mask),
            ({0: batch, 1: Dim("X", min=5)}, {0: batch, 1: Dim("N", min=1, max=sizes.max_source)}),
            {"input_features": ("B", "X", mels), "attention_mask": ("B", "N")},
            {"encoder_hidden_states": ("B", "N", sizes.D)},
        )
        step = trace_decoder(TextStep(decoder, model.get_output_embeddings(), positions), sizes)
    graphs = ModelGraphs(encoder, step, sizes)
    canonicalise_encoder_decoder(graphs)
    return graphs


class FrameStep(nn.Module):
    """The encoder over frames; its mask is an input over positions, not over frames."""

    def __init__(self, encoder: Any, max_source: int) -> None:
        super().__init__()
        self.encoder = encoder
        table, pad = encoder.embed_positions, encoder.padding_idx
        self.pad: int = pad
        self.positions = nn.Buffer(table.get_embedding(max_source + pad + 1, table.embedding_dim, pad))

    def forward(self, input_features: Tensor, attention_mask: Tensor) -> Tensor:
        encoder = self.encoder
        states = encoder.embed_scale * encoder.conv(input_features)
        B, N, _ = states.shape
        # Looked up, since the exporter does not know that the mask is as long as what the convolutions make.
        mask = attention_mask.index_select(1, torch.arange(N))
        padding = (1 - mask).ne(self.pad).long()  # the model takes its mask of padding for tokens
        rows = torch.cumsum(padding, dim=1) * padding + self.pad
        states = states + nn.functional.embedding(rows, self.positions)
        seen = mask[:, None, None, :].bool().expand(B, 1, N, N)
        for layer in encoder.layers:
            states = layer(states, seen)
        normalised: Tensor = encoder.layer_norm(states)  # [B, N, D]
        return normalised
