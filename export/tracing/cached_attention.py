"""BART's attention through transformers' attention interface, for its copies in TrOCR and LED, which do not use it."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

__all__ = ["attend"]


def attend(
    self: Any,
    hidden_states: Tensor,
    key_value_states: Tensor | None = None,
    cache: Any = None,
    attention_mask: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """A decoder's attention, [B, T, D] to [B, T, D].

    Parameters
    ----------
    self
        A module with the names of BART's attention.
    hidden_states
        [B, T, D].
    key_value_states
        [B, N, S] of cross-attention; None for self-attention.
    cache
        The cache of both attentions, to which keys and values of self-attention are appended.
    attention_mask
        Added to the scores, or true where a key is seen.
    """
    inputs = hidden_states if key_value_states is None else key_value_states

    def heads(projected: Tensor) -> Tensor:
        by_head: Tensor = projected.unflatten(-1, (self.num_heads, self.head_dim))
        return by_head.transpose(1, 2)  # [B, H, ., K]

    keys, values = heads(self.k_proj(inputs)), heads(self.v_proj(inputs))
    if cache is not None and key_value_states is None:
        keys, values = cache.self_attention_cache.update(keys, values, self.layer_idx)
    queries = heads(self.q_proj(hidden_states))
    attended, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](
        self, queries, keys, values, attention_mask, scaling=self.scaling, is_causal=False, attended_inputs=inputs
    )
    return self.out_proj(attended.flatten(2)), None
