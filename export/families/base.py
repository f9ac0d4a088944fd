"""What one model family says about itself; everything else is read from its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

SINUSOIDAL_TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
"""Position tables that the model computes; checkpoints may leave them out."""


@dataclass(frozen=True)
class Family:
    """An encoder-decoder family as transformers implements it, under its config's `model_type`.

    The encoder is `model.get_encoder()`, the decoder `model.get_decoder()`, the head `model.lm_head` (tied or not) with
    `model.final_logits_bias` [1, vocabulary] added to its output.
    """

    model_type: str
    architecture: str
    """The transformers class with the language-model head; no other class of the family generates."""
    position_offset: int
    """Row of the position table that holds position 0."""
    computed_weights: tuple[str, ...] = ()
    """Tensors that a checkpoint may leave out because the model computes them."""
    aliases: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Short name -> hub id."""

    def position_embeddings(self, model: Any) -> tuple[nn.Embedding, int]:
        """The decoder's position table [positions + offset, D], and the offset to add to a position to find its row."""
        table: nn.Embedding = model.get_decoder().embed_positions
        return table, self.position_offset

    def max_positions(self, config: Any) -> int:
        """The largest source length, and the largest target length, in tokens."""
        return int(config.max_position_embeddings)
