"""Tracing of LED: its encoder over windows, in blocks; the decoder is BART's with an attention of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers.models.led.modeling_led import LEDDecoderAttention

from tightbeam.export.tracing.attention_named import standard_attention
from tightbeam.export.tracing.blocks import Blocks, distances_to_keys, hidden_unless
from tightbeam.export.tracing.encoder_decoder import (
    DecoderStep,
    read_tokens,
    trace_decoder,
    trace_encoder,
)
from tightbeam.export.tracing.positions import PositionTable
from tightbeam.export.tracing.vision_encoder_decoder import attend
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.canonical.encoder_decoder import canonicalise_encoder_decoder

__all__ = ["attention_interface", "trace_led"]


def trace_led(model: Any, sizes: Sizes) -> ModelGraphs:
    """The canonical graphs of an LED in eval mode; their weights share memory with the model's."""
    encoder, decoder = WindowEncoder(model.get_encoder()), model.get_decoder()
    with attention_interface(model), PositionTable(decoder.embed_positions, 0).in_place_of(decoder) as positions:
        step = trace_decoder(DecoderStep(model, positions), sizes)
        graphs = ModelGraphs(trace_encoder(encoder, sizes, encoder.example_positions), step, sizes)
    read_tokens(step)
    canonicalise_encoder_decoder(graphs)
    return graphs


class WindowEncoder(nn.Module):
    """The encoder, without global attention: a query sees the keys within half of its layer's `attention_window`."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.reaches = [layer.self_attn.longformer_self_attn.one_sided_attn_window_size for layer in encoder.layers]
        self.example_positions = 2 * max(self.reaches)  # sizes of 1 would be fixed

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        encoder, N = self.encoder, input_ids.shape[1]
        positions = nn.functional.embedding(torch.arange(N), encoder.embed_positions.weight)
        states: Tensor = encoder.layernorm_embedding(encoder.embed_tokens(input_ids) + positions)
        biases: dict[int, tuple[Blocks, Tensor]] = {}
        for layer, reach in zip(encoder.layers, self.reaches, strict=True):
            if reach not in biases:
                blocks = Blocks(N, reach)
                seen = (distances_to_keys(reach).abs() <= reach) & blocks.seen(attention_mask)
                biases[reach] = blocks, hidden_unless(seen)  # [B, Y, 1, X, 3 X]
            attention = layer.self_attn.longformer_self_attn
            queries = attention.query(states) / attention.head_dim**0.5
            keys, values = attention.key(states), attention.value(states)
            blocks, bias = biases[reach]
            attended = blocks.attend(queries, keys, values, bias, attention.num_heads)
            states = layer.self_attn_layer_norm(states + layer.self_attn.output(attended))
            inner = layer.fc2(layer.activation_fn(layer.fc1(states)))
            states = layer.final_layer_norm(states + inner)
        return states


@contextmanager
def attention_interface(model: nn.Module) -> Iterator[None]:
    """Context in which the decoder's attention goes through transformers' attention interface."""
    with standard_attention(model), patch.object(LEDDecoderAttention, "forward", _attend):
        yield


def _attend(self: Any, hidden_states: Tensor, past_key_values: Any = None, **inputs: Any) -> tuple[Tensor, None, Any]:
    """`LEDDecoderAttention.forward`: TrOCR's attention, which returns the cache, too."""
    return (*attend(self, hidden_states, past_key_values=past_key_values, **inputs), past_key_values)
