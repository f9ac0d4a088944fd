"""GPT-NeoX's attention with three products in place of a fused one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention

from tightbeam.export.tracing.fused_heads import attend_by_heads, three_products

__all__ = ["separate_products"]


def separate_products(model: Any) -> AbstractContextManager[None]:
    """Context in which the attention of a GPT-NeoX projects queries, keys and values by a product each."""
    K = model.config.hidden_size // model.config.num_attention_heads
    return three_products(model, GPTNeoXAttention, _attend, K)


def _attend(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None,
    layer_past: Any = None,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """`GPTNeoXAttention.forward`, [B, T, D] to [B, T, D]."""
    assert position_embeddings is not None
    cosines, sines = position_embeddings

    def rotate(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        rotated: tuple[Tensor, Tensor] = modeling_gpt_neox.apply_rotary_pos_emb(queries, keys, cosines, sines)
        return rotated

    return attend_by_heads(self, hidden_states, rotate, layer_past, attention_mask, self.head_size, self.scaling)
