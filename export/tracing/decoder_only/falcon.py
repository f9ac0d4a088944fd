"""Falcon's attention through transformers' attention interface, with three products in place of a fused one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers.models.falcon import modeling_falcon
from transformers.models.falcon.modeling_falcon import FalconAttention, FalconLinear, build_alibi_tensor

from tightbeam.export.tracing.fused_heads import attend_by_heads, three_products

__all__ = ["attention_interface", "key_bias"]


def key_bias(heads: int, positions: int, K: int) -> Tensor:
    """ALiBi's biases by the position of the key, float32 [H, positions]; a head is K wide."""
    alone = torch.ones((1, positions), dtype=torch.long)
    return build_alibi_tensor(alone, heads, torch.float32).reshape(heads, positions) / math.sqrt(K)


@contextmanager
def attention_interface(model: Any, key_heads: int) -> Iterator[None]:
    """Context in which the attention of a Falcon with ``key_heads`` goes through the attention interface."""
    heads = model.config.num_attention_heads
    groups = heads // key_heads
    with (
        patch.object(FalconLinear, "forward", nn.Linear.forward),
        patch.object(FalconAttention, "num_key_value_groups", groups, create=True),
        three_products(model, FalconAttention, _attend, model.config.hidden_size // heads, groups),
    ):
        yield


def _attend(
    self: Any,
    hidden_states: Tensor,
    alibi: Tensor | None,
    attention_mask: Tensor | None,
    position_ids: Tensor | None = None,
    layer_past: Any = None,
    *,
    position_embeddings: tuple[Tensor, Tensor],
    **_: Any,
) -> tuple[Tensor, None]:
    """`FalconAttention.forward`, [B, T, D] to [B, T, D]. ALiBi's biases are in the mask."""

    def rotate(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        rotated: tuple[Tensor, Tensor] = modeling_falcon.apply_rotary_pos_emb(queries, keys, *position_embeddings)
        return rotated

    K, scaling = self.head_dim, self.inv_norm_factor
    turn = rotate if alibi is None else None
    return attend_by_heads(self, hidden_states, turn, layer_past, attention_mask, K, scaling)
