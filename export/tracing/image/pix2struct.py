"""Tracing of Pix2Struct: its encoder over patches, and its decoder with T5's relative positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from tightbeam.export.tracing.encoder_decoder import ModelStep, read_tokens, trace_decoder
from tightbeam.export.tracing.relative_positions import StepBias, biases_from
from tightbeam.export.tracing.torch_export import trace_module
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.canonical.encoder_decoder import canonicalise_encoder_decoder

__all__ = ["trace_pix2struct"]


def trace_pix2struct(model: Any, sizes: Sizes) -> ModelGraphs:
    """The canonical graphs of a Pix2Struct in eval mode; their weights share memory with the model's."""
    B, N, width = 3, min(7, sizes.max_source), 2 + model.config.vision_config.patch_embed_hidden_size
    mask = torch.ones((B, N), dtype=torch.long)
    mask[1, N // 2 :] = 0
    patches = torch.rand((B, N, width), generator=torch.Generator().manual_seed(0))
    dynamic = {0: Dim("B", min=1), 1: Dim("N", min=1, max=sizes.max_source)}
    encoder = trace_module(
        PatchStep(model.get_encoder()),
        (patches, mask),
        (dynamic, dynamic),
        {"flattened_patches": ("B", "N", width), "attention_mask": ("B", "N")},
        {"encoder_hidden_states": ("B", "N", sizes.D)},
    )
    attention = model.get_decoder().layer[0].self_attention.attention
    bias = StepBias(attention, sizes.max_target)
    with biases_from({attention: bias}):
        step = trace_decoder(ModelStep(model, [bias]), sizes)
    read_tokens(step)
    graphs = ModelGraphs(encoder, step, sizes)
    canonicalise_encoder_decoder(graphs)
    return graphs


class PatchStep(nn.Module):
    """The encoder over patches."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, flattened_patches: Tensor, attention_mask: Tensor) -> Tensor:
        B, N = attention_mask.shape
        mask = attention_mask[:, None, None, :].bool().expand(B, 1, N, N)
        states: Tensor = self.encoder(flattened_patches=flattened_patches, attention_mask=mask).last_hidden_state
        return states  # [B, N, D]
