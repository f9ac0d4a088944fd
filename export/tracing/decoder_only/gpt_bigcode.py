"""GPT-BigCode's attention with three products in place of one, head by head, if each head has keys of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn
from transformers.models.gpt_bigcode.modeling_gpt_bigcode import GPTBigCodeAttention

from tightbeam.export.tracing.fused_heads import attend_by_heads, three_products

__all__ = ["separate_products"]


@contextmanager
def separate_products(model: Any) -> Iterator[None]:
    """Context in which the attention of a GPT-BigCode without ``multi_query`` has a product each."""

    def named(name: str) -> Any:
        def find(attention: Any) -> nn.Module:
            found: nn.Module = getattr(attention, name)
            return found

        return property(find)

    with (
        patch.object(GPTBigCodeAttention, "query_key_value", named("c_attn"), create=True),
        patch.object(GPTBigCodeAttention, "dense", named("c_proj"), create=True),
        three_products(model, GPTBigCodeAttention, _attend, model.config.n_embd // model.config.n_head),
    ):
        yield


def _attend(
    self: Any, hidden_states: Tensor, layer_past: Any = None, attention_mask: Tensor | None = None, **_: Any
) -> tuple[Tensor, None]:
    """`GPTBigCodeAttention.forward`, [B, T, D] to [B, T, D]."""
    return attend_by_heads(self, hidden_states, None, layer_past, attention_mask, self.head_dim, self.scaling)
