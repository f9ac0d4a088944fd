"""Position embeddings looked up by the graph input ``positions``, so that rows at different steps can share a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

__all__ = ["M2M100Positions", "PositionLookup", "PositionTable"]


class PositionLookup(Protocol):
    """A module that looks up an embedding or a bias by the positions of a step."""

    positions: Tensor | None
    """[R, 1], set before each call"""


class PositionTable(nn.Module):
    """A table of positions, whose row ``offset`` holds position 0."""

    def __init__(self, table: nn.Embedding, offset: int) -> None:
        super().__init__()
        self.weight = table.weight
        self.offset = offset
        self.positions: Tensor | None = None

    @contextmanager
    def in_place_of(self, decoder: Any) -> Iterator[PositionTable]:
        """Context in which this module embeds the decoder's positions."""
        original = decoder.embed_positions
        decoder.embed_positions = self
        try:
            yield self
        finally:
            decoder.embed_positions = original

    def forward(self, *_: Any, **__: Any) -> Tensor:
        assert self.positions is not None
        return nn.functional.embedding(self.positions + self.offset, self.weight)  # [R, 1, D]


class M2M100Positions(PositionTable):
    """`M2M100SinusoidalPositionalEmbedding`, in which a pad token has no position and an embedding of zeros."""

    def __init__(self, table: Any) -> None:
        super().__init__(nn.Embedding.from_pretrained(table.weights), table.padding_idx + 1)
        self.pad: int = table.padding_idx

    def forward(self, tokens: Tensor, *_: Any, **__: Any) -> Tensor:
        assert self.positions is not None
        rows = torch.where(tokens.ne(self.pad), self.positions + self.offset, self.pad)
        return nn.functional.embedding(rows, self.weight)  # [R, 1, D]
