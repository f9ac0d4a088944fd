"""Tracing of a Fast Conformer over features of recordings, and of its decoder.

The encoder takes recordings of one length, without padding, so that its graph has no mask. Relative keys are computed
once a layer for all recordings, and convolutions over one position are products.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from tightbeam.export.tracing.encoder_decoder import TextStep, trace_decoder
from tightbeam.export.tracing.positions import PositionTable
from tightbeam.export.tracing.torch_export import trace_module
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.canonical.encoder_decoder import canonicalise_encoder_decoder

__all__ = ["trace_fast_conformer"]


def trace_fast_conformer(model: Any, sizes: Sizes) -> ModelGraphs:
    """The canonical graphs of a Cohere ASR or Canary in eval mode; their weights share memory with the model's."""
    encoder, decoder = model.get_encoder(), model.get_decoder()
    B, X, mels = 3, 5 * encoder.config.subsampling_factor, encoder.config.num_mel_bins
    graph = trace_module(
        FrameStep(encoder, getattr(decoder, "proj", None) or nn.Identity()),
        (torch.randn((B, X, mels), generator=torch.Generator().manual_seed(0)),),
        ({0: Dim("B", min=1), 1: Dim("X", min=1)},),
        {"input_features": ("B", "X", mels)},
        {"encoder_hidden_states": ("B", "N", sizes.D)},
    )
    with _given_positions(decoder) as positions:
        step = trace_decoder(TextStep(decoder, model.get_output_embeddings(), positions), sizes)
    graphs = ModelGraphs(graph, step, sizes)
    canonicalise_encoder_decoder(graphs)
    return graphs


@contextmanager
def _given_positions(decoder: Any) -> Iterator[PositionTable]:
    """Context in which positions are a graph input, and the encoder's states come projected."""
    own = {name: getattr(decoder, name) for name in ("pos_emb", "proj") if hasattr(decoder, name)}
    table = own["pos_emb"]
    if not isinstance(table, nn.Embedding):  # computed positions
        table = nn.Embedding.from_pretrained(table(torch.arange(table.length)))
    positions = PositionTable(table, 0)
    try:
        for name in own:
            setattr(decoder, name, positions if name == "pos_emb" else nn.Identity())
        yield positions
    finally:
        for name, module in own.items():
            setattr(decoder, name, module)


class FrameStep(nn.Module):
    """The encoder over frames of recordings of one length, and the decoder's projection of its states."""

    def __init__(self, encoder: Any, projection: nn.Module) -> None:
        super().__init__()
        self.subsampling, self.scale = encoder.subsampling, encoder.input_scale
        self.encode_positions = encoder.encode_positions
        self.layers = nn.ModuleList(map(Layer, encoder.layers))
        self.projection = projection

    def forward(self, input_features: Tensor) -> Tensor:
        states = self.subsampling(input_features) * self.scale
        angles = self.encode_positions(states[:1])  # [1, 2 N - 1, D]
        for layer in self.layers:
            states = layer(states, angles)
        projected: Tensor = self.projection(states)  # [B, N, D]
        return projected


class Layer(nn.Module):
    """A layer of the encoder."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.block = block
        self.before, self.behind = (_product(block.conv.pointwise_conv1), _product(block.conv.pointwise_conv2))
        attention = block.self_attn
        own = 0.0 if attention.q_proj.bias is None else attention.q_proj.bias
        self.bias_u, self.bias_v = (nn.Buffer(own + bias.flatten()) for bias in (attention.bias_u, attention.bias_v))

    def forward(self, states: Tensor, angles: Tensor) -> Tensor:
        block = self.block
        states = states + 0.5 * block.feed_forward1(block.norm_feed_forward1(states))
        states = states + self._attend(block.norm_self_att(states), angles)
        states = states + self._convolve(block.norm_conv(states))
        states = states + 0.5 * block.feed_forward2(block.norm_feed_forward2(states))
        normalised: Tensor = block.norm_out(states)
        return normalised

    def _attend(self, states: Tensor, angles: Tensor) -> Tensor:
        """Self-attention whose scores have a term of the distance, (q + v) r, beside (q + u) k."""
        attention = self.block.self_attn
        B, N, _ = states.shape
        K = attention.head_dim
        queries = nn.functional.linear(states, attention.q_proj.weight)
        query, other = ((queries + bias).view(B, N, -1, K).transpose(1, 2) for bias in (self.bias_u, self.bias_v))
        key = attention.k_proj(states).view(B, N, -1, K).transpose(1, 2)
        value = attention.v_proj(states).view(B, N, -1, K).transpose(1, 2)
        relative = attention.relative_k_proj(angles).view(2 * N - 1, -1, K).permute(1, 2, 0)  # [H, K, 2 N - 1]
        bias = other @ relative  # by distance, from N - 1 down to 1 - N
        H = bias.shape[1]
        # Row i begins N - 1 - i columns later: with a column before, the rows of the reshaped matrix do.
        bias = nn.functional.pad(bias, (1, 0)).reshape(B, H, 2 * N, N)[:, :, 1:].reshape(B, H, N, 2 * N - 1)[..., :N]
        attended = nn.functional.scaled_dot_product_attention(
            query, key, value, bias * attention.scaling, scale=attention.scaling
        )
        out: Tensor = attention.o_proj(attended.transpose(1, 2).reshape(B, N, -1))
        return out

    def _convolve(self, states: Tensor) -> Tensor:
        """The convolution over neighbouring positions."""
        convolution = self.block.conv
        inner = nn.functional.glu(self.before(states), dim=-1).transpose(1, 2)
        inner = convolution.activation(convolution.norm(convolution.depthwise_conv(inner)))
        out: Tensor = self.behind(inner.transpose(1, 2))
        return out


def _product(convolution: nn.Conv1d) -> nn.Linear:
    """A convolution over one position as a product, which shares its weights."""
    product = nn.Linear(1, 1, bias=False)
    product.weight = nn.Parameter(convolution.weight[:, :, 0], requires_grad=False)
    product.bias = convolution.bias  # type: ignore[assignment]
    return product
