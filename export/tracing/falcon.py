"""Falcon's attention through transformers' attention interface, with three products in place of a fused one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.falcon import modeling_falcon
from transformers.models.falcon.modeling_falcon import FalconAttention, FalconLinear

from tightbeam.export.tracing.fused_heads import projections

__all__ = ["attention_interface"]


@contextmanager
def attention_interface(model: Any, key_heads: int) -> Iterator[None]:
    """Context in which the attention of a Falcon with ``key_heads`` goes through the attention interface."""
    groups = model.config.num_attention_heads // key_heads
    with ExitStack() as stack:
        stack.enter_context(patch.object(FalconLinear, "forward", nn.Linear.forward))
        stack.enter_context(patch.object(FalconAttention, "forward", _attend))
        stack.enter_context(patch.object(FalconAttention, "num_key_value_groups", groups, create=True))
        for attention in [module for module in model.modules() if isinstance(module, FalconAttention)]:
            attention.projections = projections(attention.query_key_value, attention.head_dim, groups)
            stack.callback(delattr, attention, "projections")
        yield


def _attend(
    self: Any,
    hidden_states: Tensor,
    alibi: None,
    attention_mask: Tensor | None,
    position_ids: Tensor | None = None,
    layer_past: Any = None,
    *,
    position_embeddings: tuple[Tensor, Tensor],
    **_: Any,
) -> tuple[Tensor, None]:
    """`FalconAttention.forward`, [B, T, D] to [B, T, D], through transformers' attention interface."""

    def heads(projection: nn.Module) -> Tensor:
        by_head: Tensor = projection(hidden_states).unflatten(-1, (-1, self.head_dim))
        return by_head.transpose(1, 2)  # [B, H or G, T, K]

    queries, keys, values = (heads(projection) for projection in self.projections)
    queries, keys = modeling_falcon.apply_rotary_pos_emb(queries, keys, *position_embeddings)
    if layer_past is not None:
        keys, values = layer_past.update(keys, values, self.layer_idx)
    attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
    attended, _weights = attend(self, queries, keys, values, attention_mask, scaling=self.inv_norm_factor)
    return self.dense(attended.flatten(2)), None
