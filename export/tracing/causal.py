"""The two steps of a decoder-only model, traced: a whole prompt, and one new token.

The canonical graphs:

- prompt: ``input_ids`` int64 [B, N], padded on the right -> ``prompt_hidden_states`` [B, N, D], ``source.<l>.key``
  [B, G, N, K] and ``source.<l>.value`` [B, G, N, V]. The causal mask alone hides padding, which follows the
  prompt.
- decoder, one new token a row: ``tokens`` int64 [R, 1], ``positions`` int64 [R, 1], ``past.<l>.key`` [R, G, T, K] and
  ``past.<l>.value`` [R, G, T, V] -> ``logits`` [R, 1, vocabulary], ``present.<l>.key`` and ``present.<l>.value``, one
  longer.

Attention is the standard ``Attention`` operator of opset 23, with G key heads for H query heads, and keys are rotated
by the standard ``RotaryEmbedding``. A layer's window is part of the prompt graph's mask; the decoder graph has no mask,
since its past may end anywhere, and ``ModelGraphs.windows`` has the window for the passes. So it is with a bias by the
position of the key (ALiBi), and ``ModelGraphs.key_bias``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import onnx_graphsurgeon as gs
import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers.cache_utils import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.pytorch_utils import Conv1D

from tightbeam.export.tracing.encoder_decoder import cache_of, keys_and_values
from tightbeam.export.tracing.rotary_positions import ROTATION, rotate, rotation_tables
from tightbeam.export.tracing.torch_export import trace_module
from tightbeam.graph_passes import ModelGraphs, Sizes
from tightbeam.graph_passes.canonical.decoder_only import canonicalise_decoder_only

ATTENTION = "tightbeam_trace"
"""Name of the traced attention in transformers' attention interface."""


class PromptStep(nn.Module):
    """All positions of a prompt under the causal mask."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.base_model

    def forward(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        B, N = input_ids.shape
        cache = DynamicCache()
        states = self.model(
            input_ids=input_ids,
            position_ids=torch.arange(N)[None].expand(B, N),
            cache=cache,
            use_cache=True,
        ).last_hidden_state  # [B, N, D]
        return (states, *keys_and_values(cache))


class TokenStep(nn.Module):
    """One new token a row over an explicit past."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, positions: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        cache = cache_of(past)
        logits = self.model(
            input_ids=tokens, position_ids=positions, cache=cache, use_cache=True
        ).logits  # [R, 1, vocabulary]
        return (logits, *keys_and_values(cache))


def trace_causal(model: Any, sizes: Sizes, key_bias: Tensor | None = None) -> ModelGraphs:
    """Trace a decoder-only model whose attention goes through transformers' attention interface.

    Parameters
    ----------
    model
        transformers' model, in eval mode.
    sizes
        The model's sizes.
    key_bias
        float32 [H, sizes.max_target]: added to the scores by the position of the key (ALiBi).

    Returns
    -------
    ModelGraphs
        The canonical graphs, prompt and decoder, as described above.

    Raises
    ------
    ExportError
        torch's exporter fails, or fixes a size that must be dynamic.
    PassError
        The trace has another number of attentions than layers.
    """
    with _traceable(model, key_bias) as windows:
        prompt = _trace_prompt(model, sizes)
        decoder = trace_token_step(TokenStep(model), sizes)
    seen = tuple(windows.get(layer, 0) for layer in range(sizes.L))
    rotations = _rotations(model, sizes) if sizes.rotary else ()
    graphs = ModelGraphs(prompt, decoder, sizes, windows=seen if any(seen) else (), rotations=rotations)
    graphs.key_bias = None if key_bias is None else key_bias.numpy()
    canonicalise_decoder_only(graphs)
    return graphs


def _rotations(model: Any, sizes: Sizes) -> tuple[tuple[Any, Any], ...]:
    """Cosines and sines [positions, X] of all positions, by the model's own module, for each layer."""
    module = model.base_model.rotary_emb
    by_type = "layer_type" in inspect.signature(module.forward).parameters
    types: list[tuple[str, ...]] = [(kind,) if by_type else () for kind in layer_types(model.config, sizes.L)]
    found = {}
    for own in set(types):
        found[own] = rotation_tables(module, sizes.max_target, *own)
    return tuple(found[own] for own in types)


def layer_types(config: Any, layers: int) -> Sequence[str]:
    """The kind of attention of each layer, as the config names it; empty names if it names none."""
    return getattr(config, "layer_types", None) or [""] * layers


def _trace_prompt(model: Any, sizes: Sizes) -> gs.Graph:
    B, N = 3, min(7, sizes.max_source)
    outputs: dict[str, Sequence[int | str]] = {"prompt_hidden_states": ("B", "N", sizes.D)}
    for layer in range(sizes.L):
        outputs[f"source.{layer}.key"] = ("B", sizes.G, "N", sizes.K)
        outputs[f"source.{layer}.value"] = ("B", sizes.G, "N", sizes.V)
    return trace_module(
        PromptStep(model),
        (torch.arange(B * N).reshape(B, N) % sizes.vocabulary,),
        ({0: Dim("B", min=1), 1: Dim("N", min=1, max=sizes.max_source)},),
        {"input_ids": ("B", "N")},
        outputs,
    )


def trace_token_step(step: nn.Module, sizes: Sizes) -> gs.Graph:
    """Trace ``step(tokens, positions, *past)``, of one new token a row, to logits and new past."""
    R, T = 3, 5
    generator = torch.Generator().manual_seed(0)
    widths = (sizes.K, sizes.V) * sizes.L
    past = [torch.randn((R, sizes.G, T, width), generator=generator) for width in widths]
    rows, steps = Dim("R", min=1), Dim("T", min=1)
    inputs: dict[str, Sequence[int | str]] = {"tokens": ("R", 1), "positions": ("R", 1)}
    outputs: dict[str, Sequence[int | str]] = {"logits": ("R", 1, sizes.vocabulary)}
    for layer in range(sizes.L):
        for part, width in (("key", sizes.K), ("value", sizes.V)):
            inputs[f"past.{layer}.{part}"] = ("R", sizes.G, "T", width)
            outputs[f"present.{layer}.{part}"] = ("R", sizes.G, "T + 1", width)
    args = (torch.arange(R).reshape(R, 1) % sizes.vocabulary, torch.full((R, 1), T), *past)
    dynamic = ({0: rows}, {0: rows}, ({0: rows, 2: steps},) * len(past))
    return trace_module(step, args, dynamic, inputs, outputs)


@contextmanager
def _traceable(model: Any, key_bias: Tensor | None) -> Iterator[dict[int, int]]:
    """Context in which the model's attention and rotation are traced as one standard operator each, its Conv1D as a
    product. Yields a dict that fills with each traced layer's window."""
    windows: dict[int, int] = {}

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        windows[module.layer_idx] = sliding_window or 0
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        mask = None
        prompt = query.shape[2] != 1
        if prompt and (sliding_window or key_bias is not None):
            N = query.shape[2]
            places = torch.arange(N)
            ages = places[:, None] - places
            seen = (ages >= 0) & (ages < sliding_window) if sliding_window else ages >= 0
            if key_bias is None:
                mask = seen[None, None].expand(query.shape[0], 1, -1, -1)
            else:
                mask = torch.where(seen, key_bias[:, None, :N], -torch.inf)[None]  # [1, H, N, N]
        causal = prompt and mask is None
        attended = torch.onnx.ops.attention(
            query, key, value, mask, is_causal=causal, scale=scale, softcap=softcap or 0.0
        )[0]
        return attended.transpose(1, 2), None

    module = sys.modules[type(model).__module__]
    own = model.config._attn_implementation
    with ExitStack() as stack:
        stack.enter_context(patch.object(Conv1D, "forward", _multiply))
        rotary = getattr(model.base_model, "rotary_emb", None)
        if isinstance(getattr(rotary, "rope_type", None), str):
            # Others look the length up for angles that are the same up to a bundle's length (`Causal.length`).
            stack.enter_context(patch.object(rotary, "rope_type", "default"))
        if hasattr(module, ROTATION):
            stack.enter_context(patch.object(module, ROTATION, rotate))
        ALL_ATTENTION_FUNCTIONS[ATTENTION] = attend
        model.config._attn_implementation = ATTENTION
        try:
            yield windows
        finally:
            model.config._attn_implementation = own
            del ALL_ATTENTION_FUNCTIONS[ATTENTION]


def _multiply(self: Conv1D, states: Tensor) -> Tensor:
    return torch.matmul(states, self.weight) + self.bias
