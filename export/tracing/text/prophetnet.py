"""Tracing of ProphetNet: its encoder, and a step of two streams (``export/families/text/prophetnet.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.prophetnet.modeling_prophetnet import (
    ProphetNetAttention,
    ProphetNetNgramSelfAttention,
    compute_relative_buckets,
)

from tightbeam.export.tracing.encoder_decoder import trace_encoder_decoder
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.canonical.two_stream import canonicalise_two_stream

__all__ = ["attention_interface", "buckets_of", "trace_prophetnet"]


def trace_prophetnet(model: Any, sizes: Sizes) -> ModelGraphs:
    """The canonical graphs of a ProphetNet in eval mode; their weights share memory with the model's."""
    buckets = buckets_of(model.config, sizes.max_target + 1)
    graphs = trace_encoder_decoder(EncoderStep(model), DecoderStep(model, buckets), sizes)
    graphs.buckets = buckets.numpy()
    canonicalise_two_stream(graphs)
    return graphs


@contextmanager
def attention_interface(model: Any) -> Iterator[None]:
    """Context in which attention goes through the interface, and the decoder runs the main stream and the first
    predicting one alone, as a step of a bundle does."""
    with (
        patch.object(ProphetNetAttention, "forward", _attend_all),
        patch.object(ProphetNetNgramSelfAttention, "forward", _attend_streams),
        patch.object(model.get_decoder(), "ngram", 1),
        patch.object(model.config, "ngram", 1),
    ):
        yield


def buckets_of(config: Any, distances: int) -> Tensor:
    """The bucket of each distance back to a key, int64 [distances], by transformers' own function.

    The function takes the floor of a logarithm, which another runtime might round to another bucket.
    """
    back = -torch.arange(distances)
    buckets: Tensor = compute_relative_buckets(config.num_buckets, config.relative_max_distance, back)
    return buckets.long()


def attend(attention: Any, heads: int, states: Tensor, sources: Tensor, mask: Tensor) -> Tensor:
    """Attention of ``states`` [B, T, D] over ``sources`` [B, N, D], to [B, T, D].

    ``mask`` [B, 1 or H, T, N]: a bias that is added to the scores, or a boolean mask.
    """

    def by_head(projected: Tensor) -> Tensor:
        split: Tensor = projected.unflatten(-1, (heads, -1))
        return split.transpose(1, 2)  # [B, H, ., K]

    query = by_head(attention.query_proj(states))
    attended, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](
        attention,
        query,
        by_head(attention.key_proj(sources)),
        by_head(attention.value_proj(sources)),
        mask,
        scaling=query.shape[-1] ** -0.5,
        is_causal=False,
        attended_inputs=sources,
    )
    output: Tensor = attention.out_proj(attended.flatten(2))
    return output


class EncoderStep(nn.Module):
    """The encoder; positions beyond the table get its last row."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.get_encoder()
        self.heads = model.config.num_encoder_attention_heads

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        B, N = input_ids.shape
        table = self.encoder.position_embeddings.weight
        rows = (torch.arange(N) + 1).clamp(max=table.shape[0] - 1)
        embedded = self.encoder.word_embeddings(input_ids) + nn.functional.embedding(rows, table)
        states: Tensor = self.encoder.embeddings_layer_norm(embedded)
        mask = attention_mask[:, None, None, :].bool().expand(B, 1, N, N)
        for layer in self.encoder.layers:
            states = layer.self_attn_layer_norm(states + attend(layer.self_attn, self.heads, states, states, mask))
            states = layer.feed_forward_layer_norm(states + layer.feed_forward(states))
        return states  # [B, N, D]


class DecoderStep(nn.Module):
    """One decoder step of two streams over an explicit past.

    A layer reads [2 R, 1, D], a row's main stream and then its prediction: a step of twice as many rows, which
    self-attention alone treats as pairs.
    """

    buckets: Tensor

    def __init__(self, model: Any, buckets: Tensor) -> None:
        super().__init__()
        self.decoder = model.get_decoder()
        self.lm_head = model.lm_head
        self.heads = model.config.num_decoder_attention_heads
        self.register_buffer("buckets", buckets)

    def forward(
        self, tokens: Tensor, positions: Tensor, encoder_hidden_states: Tensor, attention_mask: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        decoder, table = self.decoder, self.decoder.position_embeddings.weight
        main = decoder.word_embeddings(tokens) + nn.functional.embedding(positions + 1, table)
        predicting = nn.functional.embedding(positions + 2, table) + decoder.ngram_embeddings.weight[-1]
        states = torch.cat([main, predicting], dim=-1).reshape(-1, 1, main.shape[-1])  # [2 R, 1, D]
        states = decoder.embeddings_layer_norm(states)
        mask = attention_mask[:, None, None, :].bool().expand(-1, 1, 2, -1)
        present: list[Tensor] = []
        for layer, keys, values in zip(decoder.layers, past[::2], past[1::2], strict=True):
            own, cross = layer.self_attn, layer.cross_attn
            keys = torch.cat([keys, self._by_head(own.key_proj(states))], dim=2)  # [R, H, T + 2, K]
            values = torch.cat([values, self._by_head(own.value_proj(states))], dim=2)
            present += [keys[:, :, :-1], values[:, :, :-1]]
            bias = self._bias(own, states, positions, keys.shape[2])
            states = layer.self_attn_layer_norm(states + self._attend(own, states, keys, values, bias))
            keys, values = (
                projection(encoder_hidden_states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for projection in (cross.key_proj, cross.value_proj)
            )
            states = layer.cross_attn_layer_norm(states + self._attend(cross, states, keys, values, mask))
            states = layer.feed_forward_layer_norm(states + layer.feed_forward(states))
        predictions = states.reshape(-1, 1, 2, states.shape[-1])[:, :, 1]
        return (self.lm_head(predictions), *present)

    def _by_head(self, rows: Tensor) -> Tensor:
        """Heads of both streams [R, H, 2, K] from [2 R, 1, H K]."""
        return rows.reshape(-1, 2, self.heads, rows.shape[-1] // self.heads).transpose(1, 2)

    def _attend(self, attention: Any, states: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """The output projection of an attention [2 R, 1, D]."""
        attended = nn.functional.scaled_dot_product_attention(
            self._by_head(attention.query_proj(states)), keys, values, mask, scale=keys.shape[-1] ** -0.5
        )
        output: Tensor = attention.out_proj(attended.transpose(1, 2).reshape(states.shape))
        return output

    def _bias(self, attention: Any, states: Tensor, positions: Tensor, keys: int) -> Tensor:
        """The bias by distance of each stream [R, H, 2, T + 2].

        The prediction is one position ahead of its row's token; the last key is its own, and hidden from the main
        stream.
        """
        by_bucket = attention.relative_pos_embeddings(states).reshape(-1, 2, attention.num_buckets, self.heads)
        by_bucket = by_bucket.permute(0, 3, 1, 2)  # [R, H, 2, buckets]
        distances = positions[:, :, None] + torch.arange(2)[:, None] - torch.arange(keys)  # [R, 2, T + 2]
        index = nn.functional.embedding(distances.clamp(min=0), self.buckets[:, None])[..., 0][:, None]
        bias = by_bucket.gather(3, index.expand(-1, self.heads, -1, -1))
        return torch.where((distances < 0)[:, None], -torch.inf, bias)


def _attend_all(
    self: Any, hidden_states: Tensor, key_value_states: Tensor | None = None, attention_mask: Any = None, **_: Any
) -> tuple[Tensor, None]:
    """`ProphetNetAttention.forward` through transformers' attention interface."""
    sources = hidden_states if key_value_states is None else key_value_states
    if attention_mask is None:
        attention_mask = hidden_states.new_zeros((1, 1, 1, sources.shape[1]))
    mask = attention_mask[:, :1].expand(hidden_states.shape[0], 1, hidden_states.shape[1], -1)
    return attend(self, self.num_attn_heads, hidden_states, sources, mask), None


def _attend_streams(self: Any, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None, None]:
    """`ProphetNetNgramSelfAttention.forward` of two streams [B, 2 T, D] without a past, as steps with one would give
    it: every prediction sees the main stream up to its row's token, and itself."""
    B, twice = hidden_states.shape[:2]
    T, H = twice // 2, self.num_attn_heads
    by_bucket = self.relative_pos_embeddings(hidden_states).reshape(B, twice, self.num_buckets, H).permute(0, 3, 1, 2)
    place = torch.arange(T)
    back = torch.cat([place, place + 1])[:, None] - torch.cat([place, place + 1])  # [2 T, 2 T]
    main = torch.arange(twice) < T
    seen = torch.where(main[None, :], torch.cat([place, place])[:, None] >= place.repeat(2), torch.eye(twice).bool())
    buckets = compute_relative_buckets(self.num_buckets, self.relative_max_distance, -back).long()
    bias = by_bucket.gather(3, buckets.expand(B, H, -1, -1)).masked_fill(~seen, -torch.inf)
    return attend(self, H, hidden_states, hidden_states, bias), None, None
