"""Tracing of LongT5: its encoder over blocks, with or without global tokens; the decoder is T5's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.longt5.modeling_longt5 import _make_global_fixed_block_ids

from tightbeam.export.tracing.attention_named import standard_attention
from tightbeam.export.tracing.blocks import Blocks, by_head, distances_to_keys, hidden_unless
from tightbeam.export.tracing.encoder_decoder import ModelStep, trace_decoder, trace_encoder
from tightbeam.export.tracing.relative_positions import StepBias, attentions_with_bias, biases_from
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.canonical.encoder_decoder import canonicalise_encoder_decoder

__all__ = ["trace_longt5"]


def trace_longt5(model: Any, sizes: Sizes) -> ModelGraphs:
    """The canonical graphs of a LongT5 in eval mode; their weights share memory with the model's."""
    kind = GlobalEncoder if model.config.encoder_attention_type == "transient-global" else LocalEncoder
    step: LocalEncoder = kind(model.get_encoder(), sizes.max_source)
    own = {attention: StepBias(attention, sizes.max_target) for attention in attentions_with_bias(model.get_decoder())}
    with torch.no_grad(), standard_attention(model), biases_from({**own}):
        graphs = ModelGraphs(
            trace_encoder(step, sizes, step.example_positions),
            trace_decoder(ModelStep(model, list(own.values())), sizes),
            sizes,
        )
    canonicalise_encoder_decoder(graphs)
    return graphs


class LocalEncoder(nn.Module):
    """The encoder whose queries see the keys within `local_radius`.

    Every layer has the biases of the first one.
    """

    table: Tensor
    """Bias of the keys by distance, [1, 1, H, X, 3 X]"""

    def __init__(self, encoder: Any, max_source: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.length: int = encoder.block_len
        self.example_positions = 2 * self.length + 1  # sizes of 1 would be fixed
        first = self.attention(encoder.block[0])
        self.heads: int = first.n_heads
        within = distances_to_keys(self.length).abs() < self.length
        with torch.no_grad():
            self.register_buffer("table", first.compute_bias(self.length) + hidden_unless(within))

    def attention(self, block: Any) -> Any:
        """The self-attention of a layer."""
        return block.layer[0].LocalSelfAttention

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        blocks = Blocks(input_ids.shape[1], self.length)
        bias = self.table + hidden_unless(blocks.seen(attention_mask))
        return self.layers(input_ids, blocks, bias)

    def layers(self, input_ids: Tensor, blocks: Blocks, bias: Tensor, members: Tensor | None = None) -> Tensor:
        """All layers, [B, N] to [B, N, D]. ``members`` [B, Z, N]: 1 for the positions of each global token."""
        states: Tensor = self.encoder.embed_tokens(input_ids)
        for block in self.encoder.block:
            attention = self.attention(block)
            inputs = block.layer[0].layer_norm(states)
            others: tuple[Tensor, ...] = ()
            if members is not None:
                tokens = attention.global_input_layer_norm(members @ inputs)
                others = attention.k(tokens), attention.v(tokens)
            queries, keys, values = attention.q(inputs), attention.k(inputs), attention.v(inputs)
            states = states + attention.o(blocks.attend(queries, keys, values, bias, self.heads, others))
            states = block.layer[1](states)
        normalised: Tensor = self.encoder.final_layer_norm(states)
        return normalised


class GlobalEncoder(LocalEncoder):
    """The encoder whose queries see global tokens, too: sums of `global_block_size` positions each.

    Positions behind the last whole group are part of that group; a sample without a whole group has no global token.
    One more token than groups, which no query sees, keeps every size above 0.
    """

    groups: Tensor
    """Group of each position, int64 [max_source, 1]"""
    group_table: Tensor
    """Bias of the global tokens by distance in groups, [2 reach + 1, H]"""

    def __init__(self, encoder: Any, max_source: int) -> None:
        super().__init__(encoder, max_source)
        first = self.attention(encoder.block[0])
        self.group_size: int = first.global_block_size
        self.example_positions = max(self.example_positions, 2 * self.group_size + 1)
        whole = (max(max_source, self.example_positions) // self.group_size + 1) * self.group_size
        # By transformers' own function, which adds fractions up and rounds them down.
        groups, _ = _make_global_fixed_block_ids(torch.ones((1, whole), dtype=torch.long), self.group_size)
        self.register_buffer("groups", groups.long().T.contiguous())
        self.reach: int = first.relative_attention_max_distance
        buckets = first._relative_position_bucket(
            torch.arange(-self.reach, self.reach + 1),
            num_buckets=first.relative_attention_num_buckets,
            max_distance=self.reach,
        )
        self.register_buffer("group_table", first.global_relative_attention_bias(buckets).detach())

    def attention(self, block: Any) -> Any:
        return block.layer[0].TransientGlobalSelfAttention

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        N = input_ids.shape[1]
        blocks = Blocks(N, self.length)
        positions = torch.arange(N)
        ends = (positions + 1) % self.group_size == 0
        last = (ends.long() * attention_mask).sum(dim=1, keepdim=True) - 1  # [B, 1]
        groups = nn.functional.embedding(positions, self.groups)[:, 0].minimum(last)  # [B, N]
        groups = torch.where(attention_mask.bool(), groups, -1)
        count = N // self.group_size + 1  # Z
        tokens = torch.arange(count)
        members = (groups[:, None] == tokens[:, None]).to(torch.float32)  # [B, Z, N]
        distances = (tokens - tokens[:, None]).clamp(-self.reach, self.reach) + self.reach
        by_group = nn.functional.embedding(distances, self.group_table).transpose(1, 2)  # [Z, H, Z]
        nearest = blocks.split(groups.clamp(min=0))  # [B, Y, X]
        to_tokens = by_head(nn.functional.embedding(nearest, by_group.reshape(count, -1)), self.heads)
        seen = tokens <= groups.amax(dim=1, keepdim=True)  # [B, Z]
        to_tokens = to_tokens + hidden_unless(seen)[:, None, None, None]  # [B, Y, H, X, Z]
        near = self.table + hidden_unless(blocks.seen(attention_mask))
        return self.layers(input_ids, blocks, torch.cat([near, to_tokens], dim=-1), members)
