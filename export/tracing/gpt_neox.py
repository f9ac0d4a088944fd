"""GPT-NeoX's attention with three products in place of a fused one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention

from tightbeam.export.tracing.fused_heads import projections

__all__ = ["three_products"]


@contextmanager
def three_products(model: Any) -> Iterator[None]:
    """Context in which the attention of a GPT-NeoX projects queries, keys and values by a product each."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(GPTNeoXAttention, "forward", _attend))
        for attention in [module for module in model.modules() if isinstance(module, GPTNeoXAttention)]:
            attention.projections = projections(attention.query_key_value, attention.head_size, groups=1)
            stack.callback(delattr, attention, "projections")
        yield


def _attend(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None,
    layer_past: Any = None,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """`GPTNeoXAttention.forward`, [B, T, D] to [B, T, D]."""

    def heads(projection: nn.Module) -> Tensor:
        by_head: Tensor = projection(hidden_states).unflatten(-1, (-1, self.head_size))
        return by_head.transpose(1, 2)  # [B, H, T, K]

    assert position_embeddings is not None
    queries, keys, values = (heads(projection) for projection in self.projections)
    queries, keys = modeling_gpt_neox.apply_rotary_pos_emb(queries, keys, *position_embeddings)
    if layer_past is not None:
        keys, values = layer_past.update(keys, values, self.layer_idx)
    attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
    attended, _weights = attend(self, queries, keys, values, attention_mask, scaling=self.scaling)
    return self.dense(attended.flatten(2)), None
