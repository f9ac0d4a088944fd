"""BART's architecture, shared by Pegasus, mBART and Marian: learned or sinusoidal positions in a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tightbeam.export.families.base import (
    Family,
    activation_errors,
    encoder_decoder_errors,
    head_errors,
    size_errors,
    square_sizes,
)
from tightbeam.export.tracing.encoder_decoder import DecoderStep, EncoderStep, PositionTable, trace_encoder_decoder
from tightbeam.graph_passes import ModelGraphs, Sizes

SIDES = ("encoder", "decoder")
SIDE_SIZES = tuple(f"{side}_{part}" for part in ("layers", "ffn_dim", "attention_heads") for side in SIDES)
SINUSOIDAL_TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
"""Position tables that the model computes; checkpoints may omit them."""


@dataclass(frozen=True, kw_only=True)
class BartLike(Family):
    """The encoder is `model.get_encoder()`, the decoder `model.get_decoder()`, the head `model.lm_head` (tied or not)
    with `model.final_logits_bias` [1, vocabulary] added to its output."""

    position_offset: int
    """row of the position table that holds position 0"""

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from bart_errors(config, ("d_model", "vocab_size", "max_position_embeddings"), self.architecture)

    def sizes(self, config: Any) -> Sizes:
        return square_sizes(config, config.max_position_embeddings, config.max_position_embeddings)

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        decoder = model.get_decoder()
        with PositionTable(decoder.embed_positions, self.position_offset).in_place_of(decoder) as positions:
            return trace_encoder_decoder(EncoderStep(model.get_encoder()), DecoderStep(model, positions), sizes)


def bart_errors(config: Any, sizes: tuple[str, ...], architecture: str) -> Iterator[str]:
    """Errors of a config with BART's names; its fields ``sizes`` and ``SIDE_SIZES`` must be positive integers."""
    errors = list(size_errors(config, (*sizes, *SIDE_SIZES)))
    yield from errors
    for side in () if errors else SIDES:
        yield from head_errors(config, "d_model", f"{side}_attention_heads")
    yield from activation_errors(config, "activation_function")
    yield from encoder_decoder_errors(config, architecture)
