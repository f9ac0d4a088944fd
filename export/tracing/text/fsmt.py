"""Tracing of FSMT: an attention through transformers' attention interface, its positions, encoder and step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import onnx_graphsurgeon as gs
import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.fsmt.modeling_fsmt import Attention

from tightbeam.export.tracing.encoder_decoder import caches_of, present_of, trace_decoder, trace_encoder
from tightbeam.export.tracing.positions import PositionTable
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.builder import read_instead, tidy
from tightbeam.graph_passes.canonical.encoder_decoder import canonicalise_encoder_decoder

__all__ = ["attention_interface", "trace_fsmt"]


def trace_fsmt(model: Any, sizes: Sizes) -> ModelGraphs:
    """The canonical graphs of an FSMT in eval mode; their weights share memory with the model's."""
    decoder = model.get_decoder()
    with attention_interface(), FsmtPositions(decoder.embed_positions).in_place_of(decoder) as positions:
        encoder = trace_encoder(FsmtEncoder(model.get_encoder()), sizes)
        step = trace_decoder(FsmtStep(decoder, positions), sizes)
    _samples_first(step)
    graphs = ModelGraphs(encoder, step, sizes)
    canonicalise_encoder_decoder(graphs)
    return graphs


@contextmanager
def attention_interface() -> Iterator[None]:
    """Context in which FSMT's attention goes through transformers' attention interface."""
    with patch.object(Attention, "forward", _attend):
        yield


def _attend(
    self: Any,
    query: Tensor,
    key: Tensor,
    key_padding_mask: Tensor | None = None,
    layer_state: Any = None,
    attn_mask: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """`Attention.forward`, [T, B, D] to [T, B, D]. ``key_padding_mask`` [B, N]: true at padding."""
    inputs = (key if self.encoder_decoder_attention else query).transpose(0, 1)  # [B, N, D]

    def heads(projected: Tensor) -> Tensor:
        by_head: Tensor = projected.unflatten(-1, (self.num_heads, self.head_dim))
        return by_head.transpose(1, 2)  # [B, H, ., K]

    keys, values = heads(self.k_proj(inputs)), heads(self.v_proj(inputs))
    if layer_state is not None and not self.encoder_decoder_attention:
        keys, values = layer_state.self_attention_cache.update(keys, values, self.layer_idx)
    mask = attn_mask
    if key_padding_mask is not None:
        mask = ~key_padding_mask.bool()[:, None, None, :].expand(-1, 1, query.shape[0], -1)
    elif attn_mask is not None:
        mask = attn_mask.expand(query.shape[1], 1, -1, -1)
    queries = heads(self.q_proj(query.transpose(0, 1)))
    attended, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](
        self, queries, keys, values, mask, scaling=self.scaling, is_causal=False, attended_inputs=inputs
    )
    return self.out_proj(attended.flatten(2)).transpose(0, 1), None


def _samples_first(step: gs.Graph) -> None:
    """Drop the Transposes between positions first and samples first, which are equal for a single position."""
    for node in [node for node in step.nodes if node.op == "Transpose" and node.attrs["perm"] == [1, 0, 2]]:
        read_instead(node.outputs[0], node.inputs[0])
    tidy(step)


class FsmtPositions(PositionTable):
    """`SinusoidalPositionalEmbedding`, in which a pad token has the position of the token before it."""

    def __init__(self, table: nn.Embedding) -> None:
        assert table.padding_idx is not None
        super().__init__(table, table.padding_idx)

    def forward(self, tokens: Tensor, *_: Any, **__: Any) -> Tensor:
        assert self.positions is not None
        rows = self.positions + self.offset + tokens.ne(self.offset).long()
        return nn.functional.embedding(rows, self.weight)  # [R, 1, D]


class FsmtEncoder(nn.Module):
    """The encoder, with the mask unchanged."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states: Tensor = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return states  # [B, N, D]


class FsmtStep(nn.Module):
    """One decoder step over an explicit past, to the logits and the new past."""

    def __init__(self, decoder: nn.Module, positions: PositionTable) -> None:
        super().__init__()
        self.decoder = decoder
        self.positions = positions

    def forward(
        self, tokens: Tensor, positions: Tensor, encoder_hidden_states: Tensor, attention_mask: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        self.positions.positions = positions
        caches = caches_of(past)
        R, T = past[0].shape[0], past[0].shape[2]
        logits = self.decoder(
            tokens,
            encoder_hidden_states,
            attention_mask,
            None,
            torch.zeros((R, 1, 1, T + 1)),  # one query at the end attends to all positions
            cache=caches,
            use_cache=True,
        ).last_hidden_state
        return (logits, *present_of(caches))
