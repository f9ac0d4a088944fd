"""Tracing of M2M-100: its encoder and its step."""

from __future__ import annotations

from typing import Any

from tightbeam.export.tracing.encoder_decoder import EncoderStep, ModelStep, trace_encoder_decoder
from tightbeam.export.tracing.positions import M2M100Positions
from tightbeam.graph_passes import ModelGraphs, Sizes

__all__ = ["trace_m2m_100"]


def trace_m2m_100(model: Any, sizes: Sizes) -> ModelGraphs:
    """The canonical graphs of an M2M-100 in eval mode; their weights share memory with the model's."""
    decoder = model.get_decoder()
    with M2M100Positions(decoder.embed_positions).in_place_of(decoder) as positions:
        return trace_encoder_decoder(EncoderStep(model.get_encoder()), ModelStep(model, [positions]), sizes)
