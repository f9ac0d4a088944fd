"""Whisper (Radford et al. 2022): it hears a window of 30 s as a spectrogram, and writes what was said.

The encoder takes the window whole, silence included, so there is no mask: N is max_source_positions, always.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers.activations import ACT2FN

from tightbeam.export.encoder_decoder import PositionTable, caches_of, present_of, trace_decoder
from tightbeam.export.families.base import Family, size_faults
from tightbeam.export.tracing import trace_module
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.base import settle_attention
from tightbeam.graph_passes.fold_scales import fold_scales

FRAMES_PER_POSITION = 2
"""The stride of the encoder's second convolution; that of the first is 1."""
SIZES = (
    *("d_model", "vocab_size", "num_mel_bins", "max_source_positions", "max_target_positions"),
    *(f"{side}_{part}" for side in ("encoder", "decoder") for part in ("layers", "ffn_dim", "attention_heads")),
)


@dataclass(frozen=True, kw_only=True)
class WhisperLike(Family):
    def config_faults(self, config: Any) -> Iterator[str]:
        faults = list(size_faults(config, SIZES))
        yield from faults
        for side in () if faults else ("encoder", "decoder"):
            heads = getattr(config, f"{side}_attention_heads")
            if config.d_model % heads:
                yield f"d_model {config.d_model} is not divisible by {side}_attention_heads {heads}; correct one"
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
            vocabulary=int(config.vocab_size),
            source_vocabulary=int(config.vocab_size),
            max_source=int(config.max_source_positions),
            max_target=int(config.max_target_positions),
        )

    def trace(self, model: Any, sizes: Sizes) -> ModelGraphs:
        B, mels, frames = 3, model.config.num_mel_bins, FRAMES_PER_POSITION * sizes.max_source
        encoder = trace_module(
            HearingStep(model.get_encoder()),
            (torch.randn((B, mels, frames), generator=torch.Generator().manual_seed(0)),),
            ({0: Dim("B", min=1)},),
            {"input_features": ("B", mels, frames)},
            {"encoder_hidden_states": ("B", sizes.max_source, sizes.D)},
        )
        decoder = model.get_decoder()
        with PositionTable(decoder.embed_positions, 0).in_place_of(decoder) as positions:
            graphs = ModelGraphs(encoder, trace_decoder(WritingStep(model, positions), sizes), sizes)
        for graph in (graphs.encoder, graphs.decoder):
            fold_scales(graph)
        settle_attention(graphs)
        return graphs


class HearingStep(nn.Module):
    """The encoder over a window's features float32 [B, mels, frames]."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_features: Tensor) -> Tensor:
        states: Tensor = self.encoder(input_features).last_hidden_state  # [B, N, D]
        return states


class WritingStep(nn.Module):
    """One decoder step over an explicit past. The source needs no mask; the operators of a variant take one of ones."""

    def __init__(self, model: Any, positions: PositionTable) -> None:
        super().__init__()
        self.model = model
        self.positions = positions

    def forward(
        self, tokens: Tensor, positions: Tensor, encoder_hidden_states: Tensor, attention_mask: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        self.positions.positions = positions
        caches = caches_of(past)
        R, T = past[0].shape[0], past[0].shape[2]
        logits = self.model(
            encoder_outputs=(encoder_hidden_states,),
            decoder_input_ids=tokens,
            decoder_attention_mask=tokens.new_ones((R, 1, 1, T + 1)).bool(),  # one query at the end sees all positions
            past_key_values=caches,
            use_cache=True,
        ).logits
        return (logits, *present_of(caches))


_SIZES = ("tiny", "base", "small", "medium")

WHISPER = WhisperLike(
    model_type="whisper",
    architecture="WhisperForConditionalGeneration",
    source_files=("preprocessor_config.json",),
    aliases={
        **{f"whisper-{size}": f"openai/whisper-{size}" for size in _SIZES},
        **{f"whisper-{size}.en": f"openai/whisper-{size}.en" for size in _SIZES},
        **{f"whisper-large{version}": f"openai/whisper-large{version}" for version in ("", "-v2", "-v3", "-v3-turbo")},
        **{f"distil-{name}": f"distil-whisper/distil-{name}" for name in ("small.en", "medium.en", "large-v3")},
    },
)
