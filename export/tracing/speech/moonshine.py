"""Tracing of Moonshine: its encoder over samples, its decoder, and the order of numbers in rotated heads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import onnx_graphsurgeon as gs
import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers.models.moonshine import modeling_moonshine

from tightbeam.export.tracing.encoder_decoder import TextStep, trace_decoder
from tightbeam.export.tracing.rotary_positions import ROTATION, rotate, rotation_tables
from tightbeam.export.tracing.torch_export import trace_module
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.canonical.encoder_decoder import canonicalise_encoder_decoder

__all__ = ["trace_moonshine", "unpadded_heads"]


def trace_moonshine(model: Any, sizes: Sizes) -> ModelGraphs:
    """The canonical graphs of a Moonshine in eval mode; most of their weights share memory with the model's."""
    decoder = model.get_decoder()
    with unpadded_heads(model):
        encoder = _trace_encoder(model.get_encoder(), sizes)
        with rotated_in_halves(decoder), RotaryPositions(decoder.rotary_emb).in_place_of(decoder) as positions:
            step = trace_decoder(TextStep(decoder, model.get_output_embeddings(), positions), sizes)
    tables = rotation_tables(decoder.rotary_emb, sizes.max_target)
    graphs = ModelGraphs(encoder, step, sizes, rotations=(tables,) * sizes.L)
    canonicalise_encoder_decoder(graphs)
    return graphs


def _trace_encoder(encoder: nn.Module, sizes: Sizes) -> gs.Graph:
    """The encoder over ``input_values`` float32 [B, X] and ``attention_mask`` int64 [B, N]."""
    B, N, X = 3, 5, 2600
    mask = torch.ones((B, N), dtype=torch.long)
    mask[1, N // 2 :] = 0
    samples = torch.randn((B, X), generator=torch.Generator().manual_seed(0))
    batch = Dim("B", min=1)
    # 1,279 samples make two positions; torch's capture takes one for a constant. The graph is right for one, too.
    with patch.object(modeling_moonshine, ROTATION, _rotate_pairs):
        return trace_module(
            SampleStep(encoder),
            (samples, mask),
            ({0: batch, 1: Dim("X", min=1279)}, {0: batch, 1: Dim("N", min=1, max=sizes.max_source)}),
            {"input_values": ("B", "X"), "attention_mask": ("B", "N")},
            {"encoder_hidden_states": ("B", "N", sizes.D)},
        )


class SampleStep(nn.Module):
    """The encoder over samples; its mask is an input over positions, not over samples."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_values: Tensor, attention_mask: Tensor) -> Tensor:
        encoder = self.encoder
        states = encoder.groupnorm(torch.tanh(encoder.conv1(input_values[:, None])))
        states = nn.functional.gelu(encoder.conv3(nn.functional.gelu(encoder.conv2(states)))).transpose(1, 2)
        B, N, _ = states.shape
        places = torch.arange(N)
        # Looked up, since the exporter does not know that the mask is as long as what the convolutions make.
        mask = attention_mask.index_select(1, places)[:, None, None, :].bool().expand(B, 1, N, N)
        angles = encoder.rotary_emb(states, places[None])
        for layer in encoder.layers:
            states = layer(states, attention_mask=mask, position_embeddings=angles)
        normalised: Tensor = encoder.layer_norm(states)  # [B, N, D]
        return normalised


class RotaryPositions(nn.Module):
    """Angles of rotary positions by a graph input, so that rows at different steps can share a batch."""

    def __init__(self, rotary_emb: nn.Module) -> None:
        super().__init__()
        self.rotary_emb = rotary_emb
        self.positions: Tensor | None = None

    @contextmanager
    def in_place_of(self, decoder: Any) -> Iterator[RotaryPositions]:
        """Context in which this module makes the decoder's angles, which are traced as one standard operator."""
        original = decoder.rotary_emb
        decoder.rotary_emb = self
        try:
            with patch.object(modeling_moonshine, ROTATION, rotate):
                yield self
        finally:
            decoder.rotary_emb = original

    def forward(self, states: Tensor, position_ids: Tensor) -> Any:
        return self.rotary_emb(states, self.positions)  # cosines and sines [R, 1, X]


@contextmanager
def unpadded_heads(model: nn.Module) -> Iterator[None]:
    """Context in which heads are not padded with zeros, which serve fast attention kernels alone."""
    padded = [module for module in model.modules() if getattr(module, "head_dim_padding", 0)]
    before = [module.head_dim_padding for module in padded]
    try:
        for module in padded:
            module.head_dim_padding = 0  # type: ignore[assignment]
        yield
    finally:
        for module, padding in zip(padded, before, strict=True):
            module.head_dim_padding = padding


@contextmanager
def rotated_in_halves(decoder: Any) -> Iterator[None]:
    """Context in which the queries and keys of self-attention have another order of numbers in each head.

    The model rotates neighbours, (0, 1), (2, 3) ...; here the first X / 2 numbers of a head are the former ones and the
    next X / 2 the latter. Scores are sums over both, so they are the same.
    """
    projections = [
        projection for layer in decoder.layers for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj)
    ]
    K = decoder.layers[0].self_attn.head_dim
    X = 2 * len(decoder.rotary_emb.inv_freq)
    order = torch.cat([torch.arange(0, X, 2), torch.arange(1, X, 2), torch.arange(X, K)])
    before = [(projection.weight, projection.bias) for projection in projections]
    try:
        for projection in projections:
            rows = torch.arange(len(projection.weight)).reshape(-1, K)[:, order].reshape(-1)
            projection.weight = nn.Parameter(projection.weight[rows], requires_grad=False)
            if projection.bias is not None:
                projection.bias = nn.Parameter(projection.bias[rows], requires_grad=False)
        yield
    finally:
        for projection, (weight, bias) in zip(projections, before, strict=True):
            projection.weight, projection.bias = weight, bias


def _rotate_pairs(query: Tensor, key: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`rotate` of neighbours (0, 1), (2, 3) ..., by angles [1, N, X] that the encoder's samples share."""
    X = cosines.shape[-1]
    halves = [table[..., : X // 2] for table in (cosines, sines)]
    tables = [half.expand(query.shape[0], -1, -1) for half in halves]
    width = 0 if query.shape[-1] == X else X
    rotated, rotated_key = (
        torch.onnx.ops.rotary_embedding(heads, *tables, interleaved=True, rotary_embedding_dim=width)
        for heads in (query, key)
    )
    return rotated, rotated_key
