"""MPT's attention through transformers' attention interface."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers.masking_utils import create_causal_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.mpt import modeling_mpt
from transformers.models.mpt.modeling_mpt import MptAttention, build_mpt_alibi_tensor

from tightbeam.export.tracing.fused_heads import named_interface

__all__ = ["attention_interface", "key_bias"]


def key_bias(heads: int, positions: int) -> Tensor:
    """ALiBi's biases by the position of the key, float32 [H, positions].

    transformers counts back from the newest key; a term that all keys share does not change the softmax.
    """
    back: Tensor = build_mpt_alibi_tensor(heads, positions).reshape(heads, positions)
    return back - back[:, :1]


@contextmanager
def attention_interface(model: Any) -> Iterator[None]:
    """Context in which the attention of an MPT goes through the attention interface."""
    with (
        named_interface(model, MptAttention),
        patch.object(modeling_mpt, "create_causal_mask", _mask),
        patch.object(MptAttention, "forward", _attend),
    ):
        yield


def _mask(*args: Any, **kwargs: Any) -> Tensor:
    """The attention interface's mask, True where a key is seen; a single number if it needs no mask."""
    mask: Any = create_causal_mask(*args, **kwargs)
    return torch.ones(1, dtype=torch.bool) if mask is None else mask


def _attend(
    self: Any,
    hidden_states: Tensor,
    position_bias: Tensor,
    cache: Any = None,
    attention_mask: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """`MptAttention.forward`, [B, T, D] to [B, T, D]."""

    def heads(part: Tensor) -> Tensor:
        by_head: Tensor = part.unflatten(-1, (-1, self.head_dim))
        return by_head.transpose(1, 2)  # [B, H, T, K]

    queries, keys, values = map(heads, self.Wqkv(hidden_states).chunk(3, dim=2))
    if cache is not None:
        keys, values = cache.update(keys, values, self.layer_idx)
    mask = attention_mask if attention_mask is not None and attention_mask.ndim > 1 else None
    bias = position_bias[None, :, :, torch.arange(-keys.shape[2], 0)].to(queries.dtype)  # [1, H, 1, N]
    attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
    attended, _weights = attend(self, queries, keys, values, mask, scaling=self.softmax_scale, position_bias=bias)
    return self.out_proj(attended.flatten(2)), None
