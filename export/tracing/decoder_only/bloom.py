"""BLOOM's attention through transformers' attention interface, with three products in place of a fused one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.models.bloom.modeling_bloom import BloomAttention, build_alibi_tensor

from tightbeam.export.tracing.fused_heads import attend_by_heads, named_interface, three_products

__all__ = ["attention_interface", "key_bias"]


def key_bias(heads: int, positions: int) -> Tensor:
    """ALiBi's biases by the position of the key, float32 [H, positions]."""
    alone = torch.ones((1, positions), dtype=torch.long)
    return build_alibi_tensor(alone, heads, torch.float32).reshape(heads, positions)


@contextmanager
def attention_interface(model: Any) -> Iterator[None]:
    """Context in which the attention of a BLOOM goes through the attention interface."""
    K = model.config.hidden_size // model.config.n_head
    with named_interface(model, BloomAttention), three_products(model, BloomAttention, _attend, K):
        yield


def _attend(
    self: Any,
    hidden_states: Tensor,
    residual: Tensor,
    alibi: Tensor,
    attention_mask: Tensor | None,
    layer_past: Any = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """`BloomAttention.forward`, [B, T, D] to [B, T, D]."""

    bias = alibi.unflatten(0, (-1, self.num_heads))  # [B, H, 1, N]
    K, scaling = self.head_dim, self.inv_norm_factor
    added, weights = attend_by_heads(
        self, hidden_states, None, layer_past, attention_mask, K, scaling, position_bias=bias
    )
    return residual + added, weights
