"""BART's architecture, shared by Pegasus, mBART and Marian: learned or sinusoidal positions in a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tightbeam.export.families.base import (
    Family,
    WeightNumbers,
    activation_errors,
    encoder_decoder_errors,
    head_errors,
    size_errors,
    square_sizes,
)
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.caches.cost import WeightCounts

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

    def sizes_errors(self, config: Any) -> Iterator[str]:
        yield from bart_sizes_errors(config, ("d_model", "vocab_size", "max_position_embeddings"))

    def config_errors(self, config: Any) -> Iterator[str]:
        yield from self.sizes_errors(config)
        yield from bart_errors(config, self.architecture)

    def sizes(self, config: Any) -> Sizes:
        return square_sizes(config, config.max_position_embeddings, config.max_position_embeddings)

    def weights(self, config: Any) -> WeightNumbers:
        sizes = self.sizes(config)
        shared = getattr(config, "share_encoder_decoder_embeddings", True)
        copies = 2 if shared and not config.tie_word_embeddings else 0  # both sides then have their own
        numbers = copies * sizes.D * sizes.vocabulary
        return bart_weights(config, sizes, rows=self.position_rows(config), numbers=numbers)

    def position_rows(self, config: Any) -> int:
        """Rows of both sides' position tables."""
        return 2 * (int(config.max_position_embeddings) + self.position_offset)

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        from tightbeam.export.tracing.encoder_decoder import DecoderStep, EncoderStep, trace_encoder_decoder
        from tightbeam.export.tracing.positions import PositionTable

        decoder = model.get_decoder()
        with PositionTable(decoder.embed_positions, self.position_offset).in_place_of(decoder) as positions:
            return trace_encoder_decoder(EncoderStep(model.get_encoder()), DecoderStep(model, positions), sizes)


def bart_sizes_errors(config: Any, sizes: tuple[str, ...], width: str = "d_model") -> Iterator[str]:
    """Errors of the sizes of a config with BART's names; ``sizes`` and ``SIDE_SIZES`` must be positive integers.

    ``width``: the field of the model's width.
    """
    errors = list(size_errors(config, (*sizes, *SIDE_SIZES)))
    yield from errors
    for side in () if errors else SIDES:
        yield from head_errors(config, width, f"{side}_attention_heads")


def bart_errors(config: Any, architecture: str) -> Iterator[str]:
    """Errors of a config with BART's names beyond its sizes."""
    yield from activation_errors(config, "activation_function")
    yield from encoder_decoder_errors(config, architecture)


def bart_weights(config: Any, sizes: Sizes, rows: int, numbers: int = 0) -> WeightNumbers:
    """Weights of a model with BART's layers: attention of D x D matrices, and feed-forward parts of two.

    Parameters
    ----------
    config
        A config with BART's names.
    sizes
        Sizes of its decoder.
    rows
        Rows of all position tables.
    numbers
        Numbers in other matrices, which no product with a step's rows reads.
    """
    D, square = sizes.D, sizes.D**2
    encoder = int(config.encoder_layers) * (4 * square + 2 * D * int(config.encoder_ffn_dim))
    decoder = sizes.L * (6 * square + 2 * D * int(config.decoder_ffn_dim))
    head = D * sizes.vocabulary
    tables = D * (sizes.source_vocabulary + rows)
    if not getattr(config, "share_encoder_decoder_embeddings", True):
        tables += head
    if not getattr(config, "tie_word_embeddings", True):
        tables += head
    total = encoder + decoder + sizes.L * 2 * square + tables + numbers
    return WeightNumbers(total, WeightCounts(encoder, decoder + head))
