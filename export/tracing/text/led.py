"""Tracing of LED: its encoder over windows, in blocks, with or without global tokens; the decoder is BART's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers.models.led.modeling_led import LEDDecoderAttention

from tightbeam.export.tracing.attention_named import standard_attention
from tightbeam.export.tracing.blocks import Blocks, by_head, distances_to_keys, hidden_unless
from tightbeam.export.tracing.cached_attention import attend
from tightbeam.export.tracing.encoder_decoder import (
    DecoderStep,
    read_tokens,
    trace_decoder,
    trace_encoder,
)
from tightbeam.export.tracing.positions import PositionTable
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.canonical.encoder_decoder import canonicalise_encoder_decoder

__all__ = ["attention_interface", "trace_led"]


def trace_led(model: Any, sizes: Sizes, global_tokens: int) -> ModelGraphs:
    """The canonical graphs of an LED in eval mode; their weights share memory with the model's.

    ``global_tokens``: the first so many tokens of a source have global attention.
    """
    encoder, decoder = WindowEncoder(model.get_encoder(), global_tokens), model.get_decoder()
    with attention_interface(model), PositionTable(decoder.embed_positions, 0).in_place_of(decoder) as positions:
        step = trace_decoder(DecoderStep(model, positions), sizes)
        graphs = ModelGraphs(trace_encoder(encoder, sizes, encoder.example_positions), step, sizes)
    read_tokens(step)
    canonicalise_encoder_decoder(graphs)
    return graphs


class WindowEncoder(nn.Module):
    """The encoder: a query sees the keys within half of its layer's `attention_window`, and the global tokens.

    Parameters
    ----------
    encoder
        transformers' encoder.
    global_tokens
        Z: the first so many tokens of each source have global attention, as by transformers' ``global_attention_mask``.
    """

    def __init__(self, encoder: Any, global_tokens: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.global_tokens = global_tokens
        self.reaches = [layer.self_attn.longformer_self_attn.one_sided_attn_window_size for layer in encoder.layers]
        self.example_positions = 2 * max(self.reaches)  # sizes of 1 would be fixed

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        encoder, N, counted = self.encoder, input_ids.shape[1], attention_mask.bool()
        positions = nn.functional.embedding(torch.arange(N), encoder.embed_positions.weight)
        states: Tensor = encoder.layernorm_embedding(encoder.embed_tokens(input_ids) + positions)
        tokens = GlobalTokens(counted, self.global_tokens) if self.global_tokens else None
        biases: dict[int, tuple[Blocks, Tensor]] = {}
        for layer, reach in zip(encoder.layers, self.reaches, strict=True):
            if reach not in biases:
                blocks = Blocks(N, reach)
                near = counted if tokens is None else tokens.without(counted)
                bias = hidden_unless((distances_to_keys(reach).abs() <= reach) & blocks.seen(near))
                biases[reach] = blocks, bias if tokens is None else tokens.beside(bias)  # [B, Y, 1, X, 3 X + Z]
            attention = layer.self_attn.longformer_self_attn
            queries = attention.query(states) / attention.head_dim**0.5
            keys, values = attention.key(states), attention.value(states)
            others = () if tokens is None else (tokens.rows_of(keys), tokens.rows_of(values))
            blocks, bias = biases[reach]
            attended = blocks.attend(queries, keys, values, bias, attention.num_heads, others)
            if tokens is not None:
                attended = tokens.replace(attended, tokens.attend(attention, states))
            states = layer.self_attn_layer_norm(states + layer.self_attn.output(attended))
            inner = layer.fc2(layer.activation_fn(layer.fc1(states)))
            states = layer.final_layer_norm(states + inner)
        return states


class GlobalTokens:
    """The first Z positions of a source, which see all keys and are seen by all queries.

    Padding is not global, and a source of N < Z has fewer.

    Parameters
    ----------
    counted
        False for padding, bool [B, N].
    count
        Z.
    """

    def __init__(self, counted: Tensor, count: int) -> None:
        positions = torch.arange(counted.shape[1])
        self.places = positions.clamp(max=count - 1)
        """place of each position among the global tokens, in the first Z; int64 [N]"""
        self.first = torch.minimum(torch.arange(count), positions[-1])
        """positions of the global tokens, int64 [Z]; if N < Z the last one repeats, which no local query sees"""
        self.chosen = counted & (positions < count)
        """bool [B, N]"""
        self.bias = hidden_unless(self.rows_of(counted))[:, None, None, None]
        """of the global tokens as keys, [B, 1, 1, 1, Z]"""
        self.bias_of_keys = hidden_unless(counted)[:, None, None]
        """of all keys, for the global tokens, [B, 1, 1, N]"""

    def without(self, counted: Tensor) -> Tensor:
        """A mask [B, N] without the global tokens, which a query would otherwise see twice."""
        return counted & ~self.chosen

    def beside(self, bias: Tensor) -> Tensor:
        """A bias [B, Y, 1, X, 3 X] followed by the bias of the global tokens, [B, Y, 1, X, 3 X + Z]."""
        return torch.cat([bias, self.bias.expand(*bias.shape[:-1], -1)], dim=-1)

    def rows_of(self, rows: Tensor) -> Tensor:
        """[B, Z, ...] of [B, N, ...]."""
        return rows.index_select(1, self.first)

    def attend(self, attention: Any, states: Tensor) -> Tensor:
        """Attention of the global tokens over all positions, by projections of their own, [B, N, D] to [B, Z, D]."""
        queries = attention.query_global(self.rows_of(states)) / attention.head_dim**0.5
        projected = queries, attention.key_global(states), attention.value_global(states)
        by_heads = [by_head(rows, attention.num_heads) for rows in projected]  # [B, H, Z or N, K]
        scores = by_heads[0] @ by_heads[1].transpose(-1, -2) + self.bias_of_keys
        return (scores.softmax(dim=-1) @ by_heads[2]).transpose(1, 2).flatten(2)

    def replace(self, attended: Tensor, own: Tensor) -> Tensor:
        """States [B, N, D] with ``rows`` [B, Z, D] in place of the global tokens' own."""
        return torch.where(self.chosen[:, :, None], own.index_select(1, self.places), attended)


@contextmanager
def attention_interface(model: nn.Module) -> Iterator[None]:
    """Context in which the decoder's attention goes through transformers' attention interface."""
    with standard_attention(model), patch.object(LEDDecoderAttention, "forward", _attend):
        yield


def _attend(self: Any, hidden_states: Tensor, cache: Any = None, **inputs: Any) -> tuple[Tensor, None, Any]:
    """`LEDDecoderAttention.forward`, which returns the cache, too."""
    return (*attend(self, hidden_states, cache=cache, **inputs), cache)
