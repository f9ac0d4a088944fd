"""BART's architecture, which Pegasus, mBART and Marian share: learned or computed positions in a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transformers.activations import ACT2FN

from tightbeam.export.encoder_decoder import DecoderStep, EncoderStep, PositionTable, trace_encoder_decoder
from tightbeam.export.families.base import Family, size_faults
from tightbeam.graph_passes import ModelGraphs, Sizes

SINUSOIDAL_TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
"""Position tables that the model computes; checkpoints may leave them out."""


@dataclass(frozen=True, kw_only=True)
class BartLike(Family):
    """The encoder is `model.get_encoder()`, the decoder `model.get_decoder()`, the head `model.lm_head` (tied or not)
    with `model.final_logits_bias` [1, vocabulary] added to its output."""

    position_offset: int
    """Row of the position table that holds position 0."""

    def config_faults(self, config: Any) -> Iterator[str]:
        sides = ("encoder", "decoder")
        sizes = [f"{side}_{part}" for part in ("layers", "ffn_dim", "attention_heads") for side in sides]
        faults = list(size_faults(config, ("d_model", "vocab_size", "max_position_embeddings", *sizes)))
        yield from faults
        if not faults:
            for side in sides:
                heads = getattr(config, f"{side}_attention_heads")
                if config.d_model % heads:
                    yield (
                        f"d_model {config.d_model} is not divisible by {side}_attention_heads {heads}; "
                        "correct one of them"
                    )
        if config.activation_function not in ACT2FN:
            yield (
                f"activation_function {config.activation_function!r} is unknown; "
                f"transformers has {', '.join(sorted(ACT2FN))}"
            )
        if not config.is_encoder_decoder:
            yield f"is_encoder_decoder is false; {self.architecture} needs both halves"

    def sizes(self, config: Any) -> Sizes:
        H, D = int(config.decoder_attention_heads), int(config.d_model)
        return Sizes(
            D=D,
            H=H,
            G=H,
            K=D // H,
            V=D // H,
            L=int(config.decoder_layers),
            vocabulary=int(getattr(config, "decoder_vocab_size", None) or config.vocab_size),
            source_vocabulary=int(config.vocab_size),
            max_source=int(config.max_position_embeddings),
            max_target=int(config.max_position_embeddings),
        )

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        decoder = model.get_decoder()
        with PositionTable(decoder.embed_positions, self.position_offset).in_place_of(decoder) as positions:
            return trace_encoder_decoder(EncoderStep(model.get_encoder()), DecoderStep(model, positions), sizes)
