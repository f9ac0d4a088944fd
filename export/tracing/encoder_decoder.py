"""The two steps of an encoder-decoder, traced: the encoder over a source, and one new token.

The canonical graphs, whose only caches are the past keys and values of self-attention:

- encoder: ``input_ids`` int64 [B, N], ``attention_mask`` int64 [B, N] -> ``encoder_hidden_states`` [B, N, D]
- decoder, one new token a row: ``tokens`` int64 [R, 1], ``positions`` int64 [R, 1], ``encoder_hidden_states``
  [R, N, D], ``attention_mask`` int64 [R, N], ``past.<l>.key`` and ``past.<l>.value`` [R, G, T, K]
  -> ``logits`` [R, 1, vocabulary], ``present.<l>.key`` and ``present.<l>.value`` [R, G, T + 1, K]

Attention is the standard ``Attention`` operator of opset 23; keys and values are projected inside the graph, for
cross-attention from ``encoder_hidden_states``, for self-attention from the new token. With two-stream self-attention
(``families/text/prophetnet.py``), the new token's keys are followed by the prediction's, and the bias on the
scores [R, H, 2, T + 2] masks what a stream does not see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_graphsurgeon as gs
import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from tightbeam.export.tracing.positions import PositionLookup, PositionTable
from tightbeam.export.tracing.torch_export import trace_module
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.builder import read_instead, tidy
from tightbeam.graph_passes.canonical.encoder_decoder import canonicalise_encoder_decoder


class EncoderStep(nn.Module):
    """The encoder with the mask as a plain input."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        B, N = attention_mask.shape
        # [B, 1, N, N] is taken as it is by transformers; ONNX Runtime's Attention needs the query axis in full.
        mask = attention_mask[:, None, None, :].to(torch.bool).expand(B, 1, N, N)
        states: Tensor = self.encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state  # [B, N, D]
        return states


class StatesStep(nn.Module):
    """One decoder step over an explicit past, without a cross-attention cache; a subclass has the head."""

    def __init__(self, decoder: nn.Module, positions: PositionLookup) -> None:
        super().__init__()
        self.decoder = decoder
        self.positions = positions

    def logits(self, states: Tensor) -> Tensor:
        """Logits [R, 1, vocabulary] of states [R, 1, D]."""
        raise NotImplementedError

    def forward(
        self, tokens: Tensor, positions: Tensor, encoder_hidden_states: Tensor, attention_mask: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        caches = caches_of(past)
        R, T = past[0].shape[0], past[0].shape[2]
        everything = torch.ones((R, 1, 1, T + 1), dtype=torch.bool)  # one query at the end attends to all positions
        self.positions.positions = positions
        states = self.decoder(
            input_ids=tokens,
            attention_mask=everything,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=attention_mask[:, None, None, :].to(torch.bool),
            cache=caches,
            use_cache=True,
        ).last_hidden_state  # [R, 1, D]
        return (self.logits(states), *present_of(caches))


class DecoderStep(StatesStep):
    """A decoder with BART's head, a product and a bias [1, vocabulary]."""

    def __init__(self, model: Any, positions: PositionTable) -> None:
        super().__init__(model.get_decoder(), positions)
        self.lm_head = model.lm_head
        self.logits_bias = model.final_logits_bias

    def logits(self, states: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(states) + self.logits_bias
        return logits


class TextStep(StatesStep):
    """A decoder with a head that is a module."""

    def __init__(self, decoder: nn.Module, head: nn.Module, positions: PositionLookup) -> None:
        super().__init__(decoder, positions)
        self.head = head

    def logits(self, states: Tensor) -> Tensor:
        logits: Tensor = self.head(states)
        return logits


class ModelStep(nn.Module):
    """One decoder step over an explicit past, through the whole model: for heads that are more than a product.

    ``lookups``: the modules in it that look up the graph input ``positions``.
    """

    def __init__(self, model: Any, lookups: Sequence[PositionLookup]) -> None:
        super().__init__()
        self.model = model
        self.lookups = lookups

    def forward(
        self, tokens: Tensor, positions: Tensor, encoder_hidden_states: Tensor, attention_mask: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        for module in self.lookups:
            module.positions = positions
        caches = caches_of(past)
        R, T = past[0].shape[0], past[0].shape[2]
        logits = self.model(
            encoder_outputs=(encoder_hidden_states,),
            attention_mask=attention_mask[:, None, None, :].bool(),
            decoder_input_ids=tokens,
            decoder_attention_mask=tokens.new_ones(
                (R, 1, 1, T + 1)
            ).bool(),  # one query at the end attends to all positions
            cache=caches,
            use_cache=True,
        ).logits
        return (logits, *present_of(caches))


def caches_of(past: Sequence[Tensor]) -> EncoderDecoderCache:
    """transformers' caches from keys and values [R, G, T, K] by layer; the cross-attention cache is empty."""
    return EncoderDecoderCache(cache_of(past), DynamicCache())


def cache_of(past: Sequence[Tensor]) -> DynamicCache:
    """transformers' cache of self-attention from keys and values [R, G, T, K] by layer."""
    cache = DynamicCache()
    for layer in range(len(past) // 2):
        cache.update(past[2 * layer], past[2 * layer + 1], layer)
    return cache


def present_of(caches: EncoderDecoderCache) -> list[Tensor]:
    """The keys and values of self-attention after a step, by layer, as :func:`caches_of` takes them."""
    return keys_and_values(caches.self_attention_cache)


def keys_and_values(cache: DynamicCache) -> list[Tensor]:
    """The tensors of a cache by layer: keys, values."""
    layers: list[Any] = cache.layers
    return [tensor for layer in layers for tensor in (layer.keys, layer.values)]


def read_tokens(step: gs.Graph) -> None:
    """Drop the Reshape of tokens [R, 1] to their own shape."""
    for node in [node for node in step.nodes if node.op == "Reshape" and node.inputs[0].name == "tokens"]:
        read_instead(node.outputs[0], node.inputs[0])
    tidy(step)


def trace_encoder_decoder(encoder: nn.Module, decoder: nn.Module, sizes: Sizes) -> ModelGraphs:
    """Trace both steps of an encoder-decoder.

    Parameters
    ----------
    encoder
        A module with the inputs and outputs of :class:`EncoderStep`.
    decoder
        A module with the inputs and outputs of :class:`StatesStep`.
    sizes
        The model's sizes.

    Returns
    -------
    ModelGraphs
        The canonical graphs, as described above.

    Raises
    ------
    ExportError
        torch's exporter fails, or fixes a size that must be dynamic.
    PassError
        The decoder has another number of attentions than two a layer.
    """
    graphs = ModelGraphs(trace_encoder(encoder, sizes), trace_decoder(decoder, sizes), sizes)
    canonicalise_encoder_decoder(graphs)
    return graphs


def trace_encoder(step: nn.Module, sizes: Sizes, positions: int | None = None) -> gs.Graph:
    """Trace ``step(input_ids, attention_mask)``, both int64 [B, N], to states [B, N, D], as wide as the encoder.

    ``positions``: how many the example has, at least 2; more than a source has are allowed.
    """
    B, N = 3, positions or min(7, sizes.max_source)
    mask = torch.ones((B, N), dtype=torch.long)
    mask[1, N // 2 :] = 0
    args = (torch.arange(B * N).reshape(B, N) % sizes.source_vocabulary, mask)
    batch, source = Dim("B", min=1), Dim("N", min=1, max=max(N, sizes.max_source))
    return trace_module(
        step,
        args,
        ({0: batch, 1: source}, {0: batch, 1: source}),
        {"input_ids": ("B", "N"), "attention_mask": ("B", "N")},
        {"encoder_hidden_states": ("B", "N", sizes.source_D)},
    )


def trace_decoder(step: nn.Module, sizes: Sizes) -> gs.Graph:
    """Trace ``step(tokens, positions, encoder_hidden_states, attention_mask, *past)`` to logits and new past."""
    R, N, T = 3, min(7, sizes.max_source), 5
    mask = torch.ones((R, N), dtype=torch.long)
    mask[1, N // 2 :] = 0
    generator = torch.Generator().manual_seed(0)
    # Distinct tensors: one object given twice would be traced as one input.
    past = [torch.randn((R, sizes.G, T, sizes.K), generator=generator) for _ in range(2 * sizes.L)]
    args = (
        torch.arange(R).reshape(R, 1) % sizes.vocabulary,
        torch.full((R, 1), T),
        torch.randn((R, N, sizes.source_D), generator=generator),
        mask,
        *past,
    )
    rows, source, steps = Dim("R", min=1), Dim("N", min=1, max=sizes.max_source), Dim("T", min=1)
    dynamic = ({0: rows}, {0: rows}, {0: rows, 1: source}, {0: rows, 1: source}, ({0: rows, 2: steps},) * len(past))
    names = [f"{layer}.{part}" for layer in range(sizes.L) for part in ("key", "value")]
    inputs: dict[str, Sequence[int | str]] = {
        "tokens": ("R", 1),
        "positions": ("R", 1),
        "encoder_hidden_states": ("R", "N", sizes.source_D),
        "attention_mask": ("R", "N"),
    }
    outputs: dict[str, Sequence[int | str]] = {"logits": ("R", 1, sizes.vocabulary)}
    for name in names:
        inputs[f"past.{name}"] = ("R", sizes.G, "T", sizes.K)
        outputs[f"present.{name}"] = ("R", sizes.G, "T + 1", sizes.K)
    return trace_module(step, args, dynamic, inputs, outputs)
