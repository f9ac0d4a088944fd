"""Attention whose one product for queries, keys and values, head by head, is taken apart into three products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tightbeam.export.tracing.attention_named import attention_named

__all__ = ["attend_by_heads", "named_interface", "projections", "three_products"]


@contextmanager
def named_interface(model: Any, kind: type[nn.Module]) -> Iterator[None]:
    """Context in which attentions of class ``kind`` get a config, which names SDPA of the attention interface."""
    with attention_named("sdpa", model.config), patch.object(kind, "config", model.config, create=True):
        yield


@contextmanager
def three_products(
    model: Any, kind: type[nn.Module], forward: Callable[..., Any], K: int, groups: int = 1
) -> Iterator[None]:
    """Context in which each attention of a model has three products, its ``projections``, and another ``forward``.

    Parameters
    ----------
    model
        The model of transformers.
    kind
        Class of its attentions, each with a fused product ``query_key_value``.
    forward
        What such an attention runs instead, by :func:`attend_by_heads`.
    K, groups
        As for :func:`projections`.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.object(kind, "forward", forward))
        for attention in [module for module in model.modules() if isinstance(module, kind)]:
            fused: Any = attention.query_key_value
            attention.projections = projections(fused, K, groups)
            stack.callback(delattr, attention, "projections")
        yield


def attend_by_heads(
    attention: Any,
    states: Tensor,
    rotate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None,
    past: Any,
    mask: Tensor | None,
    K: int,
    scaling: float,
    **options: Any,
) -> tuple[Tensor, None]:
    """Self-attention [B, T, D] to [B, T, D] by three products, through transformers' attention interface.

    Parameters
    ----------
    attention
        The module, within :func:`three_products`.
    states : Tensor [B, T, D]
        Its input.
    rotate
        Rotates queries [B, H, T, K] and keys [B, G, T, K]; None without rotary positions.
    past
        transformers' cache, or None.
    mask
        As the attention interface takes it.
    K
        Width of one head.
    scaling
        Factor of the scores.
    options
        More that the attention interface takes.
    """

    def heads(projection: nn.Module) -> Tensor:
        by_head: Tensor = projection(states).unflatten(-1, (-1, K))
        return by_head.transpose(1, 2)  # [B, H or G, T, K]

    queries, keys, values = (heads(projection) for projection in attention.projections)
    if rotate is not None:
        queries, keys = rotate(queries, keys)
    if past is not None:
        keys, values = past.update(keys, values, attention.layer_idx)
    attend = ALL_ATTENTION_FUNCTIONS[attention.config._attn_implementation]
    attended, _weights = attend(attention, queries, keys, values, mask, scaling=scaling, **options)
    return attention.dense(attended.flatten(2)), None


def projections(fused: nn.Linear, K: int, groups: int) -> nn.ModuleList:
    """Three products for queries, keys and values out of one.

    Parameters
    ----------
    fused
        Yields for each key head the queries of ``groups`` heads, the keys, and the values.
    K
        Width of one head.
    groups
        Query heads that share a key head.

    Returns
    -------
    ModuleList
        The products for queries [D, H K], keys [D, G K] and values [D, G K], each with its bias if it has one.
    """

    def split(tensor: Tensor) -> list[Tensor]:
        by_head = tensor.unflatten(0, (-1, groups + 2, K))  # [G, groups + 2, K, ...]
        parts = by_head[:, :groups].flatten(0, 1), by_head[:, groups], by_head[:, groups + 1]
        return [part.flatten(0, 1) for part in parts]

    weights = split(fused.weight)
    biases = [None] * len(weights) if fused.bias is None else split(fused.bias)
    found = nn.ModuleList()
    for weight, bias in zip(weights, biases, strict=True):
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        linear.weight = nn.Parameter(weight, requires_grad=False)
        linear.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        found.append(linear)
    return found
