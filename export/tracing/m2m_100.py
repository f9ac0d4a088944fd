"""Tracing of M2M-100: its positions, encoder and step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tightbeam.export.tracing.encoder_decoder import EncoderStep, ModelStep, PositionTable, trace_encoder_decoder
from tightbeam.graph_passes import ModelGraphs, Sizes

__all__ = ["trace_m2m_100"]


def trace_m2m_100(model: Any, sizes: Sizes) -> ModelGraphs:
    """The canonical graphs of an M2M-100 in eval mode; their weights share memory with the model's."""
    decoder = model.get_decoder()
    with M2M100Positions(decoder.embed_positions).in_place_of(decoder) as positions:
        return trace_encoder_decoder(EncoderStep(model.get_encoder()), ModelStep(model, [positions]), sizes)


class M2M100Positions(PositionTable):
    """`M2M100SinusoidalPositionalEmbedding`, where a pad token has no position, and zeros for its embedding."""

    def __init__(self, table: Any) -> None:
        super().__init__(nn.Embedding.from_pretrained(table.weights), table.padding_idx + 1)
        self.pad: int = table.padding_idx

    def forward(self, tokens: Tensor, *_: Any, **__: Any) -> Tensor:
        assert self.positions is not None
        rows = torch.where(tokens.ne(self.pad), self.positions + self.offset, self.pad)
        return nn.functional.embedding(rows, self.weight)  # [R, 1, D]
