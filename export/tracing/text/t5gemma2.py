"""Tracing of T5Gemma 2: its encoder, to the keys and values that the decoder's layers make of the source, and a step of
its decoder over the generated part, which the passes of the source cache complete."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.t5gemma2.modeling_t5gemma2 import (
    T5Gemma2MergedAttention,
    T5Gemma2SelfAttention,
    T5Gemma2TextScaledWordEmbedding,
)

from tightbeam.export.tracing.causal import trace_token_step
from tightbeam.export.tracing.encoder_decoder import caches_of, present_of
from tightbeam.export.tracing.rotary_positions import rotate, rotation_tables
from tightbeam.export.tracing.torch_export import trace_module
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.canonical.decoder_only import canonicalise_decoder_only

__all__ = ["attention_interface", "trace_t5gemma2"]

FULL, SLIDING = "full_attention", "sliding_attention"


def trace_t5gemma2(model: Any, sizes: Sizes) -> ModelGraphs:
    """The canonical graphs of a T5Gemma 2 in eval mode; their weights share memory with the model's."""
    decoder = model.get_decoder()
    with _traceable(model):
        encoder = _trace_source(SourceStep(model), sizes)
        graphs = ModelGraphs(encoder, trace_token_step(OutputStep(model), sizes), sizes)
    windows = tuple(layer.self_attn.sliding_window or 0 for layer in decoder.layers)
    graphs.windows = windows if any(windows) else ()
    tables = {
        kind: rotation_tables(decoder.rotary_emb, sizes.max_target, kind) for kind in decoder.rotary_emb.rope_type
    }
    graphs.rotations = tuple(tables[layer.self_attn.layer_type] for layer in decoder.layers)
    canonicalise_decoder_only(graphs)
    return graphs


class SourceStep(nn.Module):
    """The encoder, and each decoder layer's keys and values of its output."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.get_encoder().text_model
        self.attentions = nn.ModuleList([layer.self_attn for layer in model.get_decoder().layers])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        B, N = attention_mask.shape
        window, places = self.encoder.config.sliding_window, torch.arange(N)
        back = places[:, None] - places  # from a query to a key
        near = (back < (window + 1) // 2) & (-back < window // 2 + 1)
        counted = attention_mask[:, None, None, :].bool().expand(B, 1, N, N)
        states = self.encoder(
            input_ids=input_ids,
            attention_mask={FULL: counted, SLIDING: counted & near},
            position_ids=places[None].expand(B, N),
        ).last_hidden_state  # [B, N, D]
        return tuple(tensor for attention in self.attentions for tensor in _keys_and_values(attention, states))


class OutputStep(nn.Module):
    """One new token a row over an explicit past, without the source."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, positions: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        caches, unread = caches_of(past), torch.zeros((1, 1, 1, 1))
        logits = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=unread[0]),
            attention_mask={FULL: unread},
            decoder_input_ids=tokens,
            decoder_position_ids=positions,
            decoder_attention_mask={FULL: unread, SLIDING: unread},
            cache=caches,
            use_cache=True,
        ).logits
        return (logits, *present_of(caches))


def _trace_source(step: nn.Module, sizes: Sizes) -> Any:
    B, N = 3, min(7, sizes.max_source)
    mask = torch.ones((B, N), dtype=torch.long)
    mask[1, N // 2 :] = 0
    outputs: dict[str, Sequence[int | str]] = {}
    for layer in range(sizes.L):
        outputs[f"source.{layer}.key"] = ("B", sizes.G, "N", sizes.K)
        outputs[f"source.{layer}.value"] = ("B", sizes.G, "N", sizes.V)
    batch, source = Dim("B", min=1), Dim("N", min=1, max=max(N, sizes.max_source))
    return trace_module(
        step,
        (torch.arange(B * N).reshape(B, N) % sizes.vocabulary, mask),
        ({0: batch, 1: source}, {0: batch, 1: source}),
        {"input_ids": ("B", "N"), "attention_mask": ("B", "N")},
        outputs,
    )


@contextmanager
def attention_interface() -> Iterator[None]:
    """Context in which the decoder's attention says what its keys and values are made of: output, then source."""
    own: Any = T5Gemma2MergedAttention.forward

    def forward(self: Any, *, hidden_states: Tensor, encoder_hidden_states: Tensor, **given: Any) -> Any:
        attended = torch.cat([hidden_states, encoder_hidden_states], dim=1)
        return own(
            self,
            hidden_states=hidden_states,
            encoder_hidden_states=encoder_hidden_states,
            attended_inputs=attended,
            **given,
        )

    with patch.object(T5Gemma2MergedAttention, "forward", forward):
        yield


@contextmanager
def _traceable(model: Any) -> Iterator[None]:
    """Context in which attention and rotation are traced as one standard operator each, that of the decoder over the
    generated part alone."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(T5Gemma2SelfAttention, "forward", _attend_source))
        stack.enter_context(patch.object(T5Gemma2MergedAttention, "forward", _attend_output))
        stack.enter_context(patch.object(T5Gemma2TextScaledWordEmbedding, "forward", _embed))
        for side in (model.get_encoder().text_model, model.get_decoder()):
            # Others look the length up for angles that are the same up to a bundle's length (`Causal.length`).
            kinds = dict.fromkeys(side.rotary_emb.rope_type, "default")
            stack.enter_context(patch.object(side.rotary_emb, "rope_type", kinds))
        yield


def _embed(self: Any, input_ids: Tensor) -> Tensor:
    rows = nn.functional.embedding(input_ids, self.weight) * self.embed_scale.to(self.weight.dtype)
    return torch.where((input_ids == self.eoi_token_index)[..., None], self.eoi_embedding, rows)


def _attend_source(
    self: Any, hidden_states: Tensor, position_embeddings: Any, attention_mask: Tensor, **_: Any
) -> tuple[Tensor, None]:
    query, key = rotate(_queries(self, hidden_states), _keys(self, hidden_states), *position_embeddings)
    return _attended(self, query, key, _by_head(self, self.v_proj(hidden_states)), attention_mask), None


def _attend_output(
    self: Any, hidden_states: Tensor, position_embeddings: Any, cache: Any, **_: Any
) -> tuple[Tensor, None, None]:
    query, key = rotate(_queries(self, hidden_states), _keys(self, hidden_states), *position_embeddings)
    value = _by_head(self, self.v_proj(hidden_states))
    key, value = cache.self_attention_cache.update(key, value, self.layer_idx)
    return _attended(self, query, key, value, None), None, None


def _attended(attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    attended = torch.onnx.ops.attention(query, key, value, mask, scale=float(attention.scaling))[0]
    projected: Tensor = attention.o_proj(attended.transpose(1, 2).flatten(2))
    return projected


def _keys_and_values(attention: Any, states: Tensor) -> tuple[Tensor, Tensor]:
    return _keys(attention, states), _by_head(attention, attention.v_proj(states))


def _queries(attention: Any, states: Tensor) -> Tensor:
    queries: Tensor = attention.q_norm(_by_head(attention, attention.q_proj(states)))
    return queries


def _keys(attention: Any, states: Tensor) -> Tensor:
    keys: Tensor = attention.k_norm(_by_head(attention, attention.k_proj(states)))
    return keys


def _by_head(attention: Any, projected: Tensor) -> Tensor:
    """[B, N, G K] as [B, G, N, K]."""
    by_head: Tensor = projected.unflatten(-1, (-1, attention.head_dim))
    return by_head.transpose(1, 2)
