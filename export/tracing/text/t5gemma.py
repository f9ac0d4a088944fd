"""Tracing of T5Gemma: its encoder, whose masks are made here, and its decoder's step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.t5gemma import modeling_t5gemma

from tightbeam.export.tracing.capped_attention import EAGER
from tightbeam.export.tracing.encoder_decoder import caches_of, present_of, trace_encoder_decoder
from tightbeam.export.tracing.rotary_positions import ROTATION, rotate, rotation_tables
from tightbeam.graph_passes import ModelGraphs, Sizes

__all__ = ["trace_t5gemma"]

FULL, SLIDING = "full_attention", "sliding_attention"


def trace_t5gemma(model: Any, sizes: Sizes) -> ModelGraphs:
    """The canonical graphs of a T5Gemma in eval mode; their weights share memory with the model's."""
    decoder = model.get_decoder()
    with _traceable(model):
        graphs = trace_encoder_decoder(WindowedEncoderStep(model.get_encoder()), CappedStep(model), sizes)
    windows = tuple(layer.self_attn.sliding_window or 0 for layer in decoder.layers)
    graphs.windows = windows if any(windows) else ()
    graphs.rotations = (rotation_tables(decoder.rotary_emb, sizes.max_target),) * sizes.L
    return graphs


class WindowedEncoderStep(nn.Module):
    """The encoder with the mask as a plain input, and a mask of its own for layers with a window."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        B, N = attention_mask.shape
        places = torch.arange(N)
        counted = attention_mask[:, None, None, :].bool().expand(B, 1, N, N)
        near = (places[:, None] - places).abs() <= self.encoder.config.sliding_window
        states: Tensor = self.encoder(
            input_ids=input_ids,
            attention_mask={FULL: counted, SLIDING: counted & near},
            position_ids=places[None].expand(B, N),
        ).last_hidden_state  # [B, N, D]
        return states


class CappedStep(nn.Module):
    """One decoder step over an explicit past, to the capped logits; windows are left to the passes."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: Tensor, positions: Tensor, encoder_hidden_states: Tensor, attention_mask: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        caches = caches_of(past)
        logits = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=encoder_hidden_states),
            attention_mask={FULL: attention_mask[:, None, None, :].bool()},
            decoder_input_ids=tokens,
            decoder_position_ids=positions,
            decoder_attention_mask={FULL: None, SLIDING: None},  # one query at the end sees all positions
            cache=caches,
            use_cache=True,
        ).logits
        return (logits, *present_of(caches))


@contextmanager
def _traceable(model: Any) -> Iterator[None]:
    """Context in which the model's attention and rotation are traced as one standard operator each."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(modeling_t5gemma, EAGER, _attend))
        stack.enter_context(patch.object(modeling_t5gemma, ROTATION, rotate))
        for side in (model.get_encoder(), model.get_decoder()):
            # Others look the length up for angles that are the same up to a bundle's length (`Causal.length`).
            stack.enter_context(patch.object(side.rotary_emb, "rope_type", "default"))
        yield


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    softcap: float | None,
    **_: Any,
) -> tuple[Tensor, None]:
    attended = torch.onnx.ops.attention(query, key, value, attention_mask, scale=float(scaling), softcap=softcap or 0.0)
    return attended[0].transpose(1, 2), None
