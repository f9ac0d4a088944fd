"""Tracing of image to text: the encoder over pixels, TrOCR's attention, and the decoder's step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import onnx_graphsurgeon as gs
import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.trocr.modeling_trocr import TrOCRAttention

from tightbeam.export.tracing.encoder_decoder import PositionLookup, PositionTable, caches_of, present_of, trace_decoder
from tightbeam.export.tracing.m2m_100 import M2M100Positions
from tightbeam.export.tracing.torch_export import trace_module
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.builder import read_instead, tidy
from tightbeam.graph_passes.canonical.encoder_decoder import canonicalise_encoder_decoder

__all__ = ["TextStep", "attention_interface", "read_tokens", "trace_vision_encoder_decoder"]


def trace_vision_encoder_decoder(
    model: Any, sizes: Sizes, shape: tuple[int, int, int], position_offset: int
) -> ModelGraphs:
    """The canonical graphs of a VisionEncoderDecoderModel in eval mode; their weights share memory with the model's.

    ``shape``: colours, height and width of an image. ``position_offset``: row of the decoder's table of learned
    positions that holds position 0.
    """
    encoder = _trace_encoder(model, sizes, shape)
    decoder = model.decoder.model.decoder
    table = decoder.embed_positions
    computed = not isinstance(table, nn.Embedding)
    positions = M2M100Positions(table) if computed else PositionTable(table, position_offset)
    with attention_interface(model), positions.in_place_of(decoder):
        step = trace_decoder(TextStep(decoder, model.decoder.get_output_embeddings(), positions), sizes)
    read_tokens(step)
    graphs = ModelGraphs(encoder, step, sizes)
    canonicalise_encoder_decoder(graphs)
    return graphs


def _trace_encoder(model: Any, sizes: Sizes, shape: tuple[int, int, int]) -> gs.Graph:
    """The encoder over ``pixel_values`` float32 [B, colours, height, width]."""
    return trace_module(
        PixelStep(model.encoder, getattr(model, "enc_to_dec_proj", None)),
        (torch.randn((3, *shape), generator=torch.Generator().manual_seed(0)),),
        ({0: Dim("B", min=1)},),
        {"pixel_values": ("B", *shape)},
        {"encoder_hidden_states": ("B", sizes.max_source, sizes.source_D)},
    )


def read_tokens(step: gs.Graph) -> None:
    """Drop the Reshape of tokens [R, 1] to their own shape."""
    for node in [node for node in step.nodes if node.op == "Reshape" and node.inputs[0].name == "tokens"]:
        read_instead(node.outputs[0], node.inputs[0])
    tidy(step)


class PixelStep(nn.Module):
    """The encoder over pixels, and its projection to the decoder's width where the model has one."""

    def __init__(self, encoder: nn.Module, projection: nn.Module | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = projection

    def forward(self, pixel_values: Tensor) -> Tensor:
        states: Tensor = self.encoder(pixel_values=pixel_values).last_hidden_state  # [B, N, S]
        return states if self.projection is None else self.projection(states)


class TextStep(nn.Module):
    """One decoder step over an explicit past, to the logits and the new past."""

    def __init__(self, decoder: nn.Module, head: nn.Module, positions: PositionLookup) -> None:
        super().__init__()
        self.decoder = decoder
        self.head = head
        self.positions = positions

    def forward(
        self, tokens: Tensor, positions: Tensor, encoder_hidden_states: Tensor, attention_mask: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        self.positions.positions = positions
        caches = caches_of(past)
        R, T = past[0].shape[0], past[0].shape[2]
        states = self.decoder(
            input_ids=tokens,
            attention_mask=torch.ones((R, 1, 1, T + 1), dtype=torch.bool),  # one query at the end sees all positions
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=attention_mask[:, None, None, :].bool(),
            past_key_values=caches,
            use_cache=True,
        ).last_hidden_state  # [R, 1, D]
        return (self.head(states), *present_of(caches))


@contextmanager
def attention_interface(model: Any) -> Iterator[None]:
    """Context in which the decoder's attention goes through transformers' attention interface."""
    decoder = model.decoder.config
    before = decoder._attn_implementation
    decoder._attn_implementation = "sdpa"
    try:
        with patch.object(TrOCRAttention, "forward", _attend):
            yield
    finally:
        decoder._attn_implementation = before


def _attend(
    self: Any,
    hidden_states: Tensor,
    key_value_states: Tensor | None = None,
    past_key_values: Any = None,
    attention_mask: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """`TrOCRAttention.forward`, [B, T, D] to [B, T, D]; ``key_value_states`` [B, N, S] of cross-attention."""
    inputs = hidden_states if key_value_states is None else key_value_states

    def heads(projected: Tensor) -> Tensor:
        by_head: Tensor = projected.unflatten(-1, (self.num_heads, self.head_dim))
        return by_head.transpose(1, 2)  # [B, H, ., K]

    keys, values = heads(self.k_proj(inputs)), heads(self.v_proj(inputs))
    if past_key_values is not None and key_value_states is None:
        keys, values = past_key_values.self_attention_cache.update(keys, values, self.layer_idx)
    queries = heads(self.q_proj(hidden_states))
    attended, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](
        self, queries, keys, values, attention_mask, scaling=self.scaling, is_causal=False, attended_inputs=inputs
    )
    return self.out_proj(attended.flatten(2)), None
