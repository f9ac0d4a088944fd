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
from transformers.models.trocr.modeling_trocr import TrOCRAttention

from tightbeam.export.tracing.attention_named import attention_named
from tightbeam.export.tracing.cached_attention import attend
from tightbeam.export.tracing.encoder_decoder import TextStep, read_tokens, trace_decoder
from tightbeam.export.tracing.positions import M2M100Positions, PositionTable
from tightbeam.export.tracing.torch_export import trace_module
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.canonical.encoder_decoder import canonicalise_encoder_decoder

__all__ = ["attention_interface", "trace_vision_encoder_decoder"]


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


class PixelStep(nn.Module):
    """The encoder over pixels, and its projection to the decoder's width if the model has one."""

    def __init__(self, encoder: nn.Module, projection: nn.Module | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = projection

    def forward(self, pixel_values: Tensor) -> Tensor:
        states: Tensor = self.encoder(pixel_values=pixel_values).last_hidden_state  # [B, N, S]
        return states if self.projection is None else self.projection(states)


@contextmanager
def attention_interface(model: Any) -> Iterator[None]:
    """Context in which the decoder's attention goes through transformers' attention interface."""
    with attention_named("sdpa", model.decoder.config), patch.object(TrOCRAttention, "forward", attend):
        yield
