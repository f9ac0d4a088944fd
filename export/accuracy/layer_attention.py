"""One layer's attention on real activations, in the forms in which caches hold it, and the error of each form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tightbeam.export.accuracy.activations import AttentionActivations
from tightbeam.graph_passes import KeyForm
from tightbeam.graph_passes.attention import AttentionBlock
from tightbeam.graph_passes.caches.algebra import few_columns, key_heads, orthonormal_heads, value_heads
from tightbeam.graph_passes.caches.cached_keys import CachedKeys
from tightbeam.graph_passes.precision.integers import MOST, SMALLEST, quantized_columns
from tightbeam.graph_passes.precision.lower_precision import INTEGERS

__all__ = ["BASELINE_PRECISION", "TORCH_DTYPES", "LayerAttention", "product_in", "rows_in_int8"]

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int8": torch.float32,
    "int4": torch.float32,
}
"""Type of the attention itself, by the bundle's precision."""
HALF = (torch.float16, torch.bfloat16)
BASELINE_PRECISION: Mapping[str, str] = {"fp32": "fp16", "fp16": "fp16", "bf16": "bf16", "int8": "int8", "int4": "int8"}
"""Precision of the original attention whose error bounds the error of the rewritten one."""


@dataclass(frozen=True)
class LayerAttention:
    """One attention in float64, without key and value biases, which fold away."""

    states: Tensor  # [B, N, D], what keys and values are projected from
    query: Tensor  # [B, H, T, K], scaled
    key: Tensor  # [B, N, G K + r], as cached; r more numbers in the form K plus r
    key_bias: Tensor  # [G K + r], the part of the cached key that values are not made of; 0 if the bias is folded
    scored: Tensor  # [B, G, N, K], as multiplied with queries: rotated, if the model has rotary positions
    value: Tensor  # [B, N, G V]
    mask: Tensor  # [B, 1 or H, T, N]
    W_K: Any  # [D, G K + r]
    W_V: Any  # [D, G V]
    softcap: float = 0.0  # of the scores before the mask; 0: none

    @classmethod
    def of(cls, block: AttentionBlock, activations: AttentionActivations) -> LayerAttention:
        states = activations.states.double()
        cached = CachedKeys.of(block)
        W_K, W_V = cached.weight, np.asarray(block.value.weight.values, np.float64)
        B, G, N, K = activations.key.shape
        bias = torch.zeros(G * K, dtype=torch.float64)
        if block.keeps_key_bias and cached.bias is not None:
            bias = torch.from_numpy(cached.bias)
        key = product_in(states, W_K) + bias
        return cls(
            states=states,
            query=activations.query.double() * activations.scale,
            key=key,
            key_bias=bias,
            scored=activations.key.double() if block.between else key.reshape(B, N, G, K).transpose(1, 2),
            value=product_in(states, W_V),
            mask=activations.mask.double(),
            W_K=W_K,
            W_V=W_V,
            softcap=activations.softcap,
        )

    def with_orthonormal_keys(self) -> LayerAttention:
        """The same scores of other queries and keys (``orthonormal_heads``); without rotation, norm and key bias."""
        B, G, N, K = self.scored.shape
        W_K, factors = orthonormal_heads(self.W_K, G)
        key = product_in(self.states, W_K)
        by_query = torch.from_numpy(factors.transpose(0, 2, 1).repeat(self.query.shape[1] // G, axis=0))
        scored = key.reshape(B, N, G, K).transpose(1, 2)
        return replace(self, query=self.query @ by_query, key=key, scored=scored, W_K=W_K)

    def with_few(self, r: int, channels: Any = None) -> LayerAttention:
        """K plus r: r more numbers behind each row of keys, of which values are made too (``few_columns``)."""
        W_K = np.concatenate([self.W_K, few_columns(self.W_K, r, channels)], axis=1)
        bias = torch.cat([self.key_bias, torch.zeros(r, dtype=torch.float64)])
        return replace(self, key=product_in(self.states, W_K) + bias, key_bias=bias, W_K=W_K)

    def in_form(self, keys: KeyForm, channels: Any = None) -> LayerAttention:
        """The attention whose keys have a form; ``channels``: of what keys are made of."""
        attention = self.with_orthonormal_keys() if keys.orthonormal else self
        return attention.with_few(keys.few, channels) if keys.few else attention

    def with_cached_rows(self, rounded: Callable[[Tensor], Tensor]) -> LayerAttention:
        """The same over rounded rows of keys, which are multiplied with queries as they are cached."""
        B, G, N, K = self.scored.shape
        key = rounded(self.key)
        return replace(self, key=key, scored=key[..., : G * K].reshape(B, N, G, K).transpose(1, 2))

    def with_products_in(self, precision: str) -> LayerAttention:
        """The same with keys and values from products of integers; unchanged in half precision, which ``dtype`` is.

        Keys that are rotated before they are multiplied with queries keep these products exact.
        """
        if precision not in INTEGERS:
            return self
        key = product_in(self.states, self.W_K, precision) + self.key_bias
        B, G, N, K = self.scored.shape
        is_cached = bool((self.scored.transpose(1, 2).reshape(B, N, G * K) == self.key[..., : G * K]).all())
        scored = key[..., : G * K].reshape(B, N, G, K).transpose(1, 2) if is_cached else self.scored
        return replace(self, key=key, scored=scored, value=product_in(self.states, self.W_V, precision))

    @cached_property
    def exact(self) -> Tensor:
        """Outputs [B, H, T, V] in float64."""
        return self.from_keys_and_values(torch.float64)

    def error(self, found: Tensor) -> float:
        """Error of outputs [B, H, T, V], relative to the exact ones; infinite if one is NaN or infinite."""
        exact = self.exact
        counted = torch.isfinite(exact)
        difference = (found.double() - exact)[counted].square().mean().sqrt()
        if difference == 0:  # also if the layer gives nothing but zeros
            return 0.0
        error = difference / exact[counted].square().mean().sqrt()
        return float(error) if torch.isfinite(error) else float("inf")

    def baseline_error(self, precision: str) -> float:
        """Error of the original attention at ``BASELINE_PRECISION``.

        Activations beyond the range of float16 are measured in bfloat16, whose mantissa has 3 bits less. If that fails
        too, the result is 0, and no error is allowed.
        """
        baseline = BASELINE_PRECISION[precision]
        half = self.error(self.with_products_in(baseline).from_keys_and_values(TORCH_DTYPES[baseline]))
        if np.isfinite(half):
            return half
        wide = self.error(self.from_keys_and_values(torch.bfloat16)) / 8
        return wide if np.isfinite(wide) else 0.0

    def from_keys_and_values(self, dtype: torch.dtype) -> Tensor:
        """The original attention."""
        B, N, _ = self.value.shape
        values = self._for_queries(self.value.reshape(B, N, self.scored.shape[1], -1).transpose(1, 2))
        keys = self._for_queries(self.scored)
        return self._weights(self.query.to(dtype), keys.to(dtype)) @ values.to(dtype)

    def from_keys(self, W_KV: Any, dtype: torch.dtype) -> Tensor:
        """Values made of the cached keys, after the softmax, by a matrix that ``split_inverses`` splits."""
        keys = self.key.to(dtype)
        weights = self._weights(self.query.to(dtype), self._for_queries(self.scored).to(dtype))
        of_bias = self._values(self.key_bias.to(dtype)[None, None, None], W_KV, dtype, split=True)
        return self._values(weights @ keys[:, None], W_KV, dtype, split=True) - of_bias

    def from_rows(self, rows: Tensor, W_K: Any, W_V: Any, dtype: torch.dtype, *, split: bool = False) -> Tensor:
        """Keys and values both made of ``rows`` [B, N, X], with W_K [X, G K] and W_V [X, G V].

        ``split``: W_V is made by an inverse, and ``split_inverses`` splits it.
        """
        H, K = self.query.shape[1], self.query.shape[3]
        by_head = torch.from_numpy(key_heads(W_K, H, K)).to(dtype)  # [H, K, X]
        weights = self._weights(self.query.to(dtype) @ by_head, rows[:, None].to(dtype))
        return self._values(weights @ rows[:, None].to(dtype), W_V, dtype, split=split)

    def _values(self, latent: Tensor, weight: Any, dtype: torch.dtype, *, split: bool) -> Tensor:
        """Values of ``latent`` [B, H, T, X]; a matrix that is split has twice the bits of ``dtype``."""
        H = self.query.shape[1]
        G = self.scored.shape[1]
        by_head = torch.from_numpy(value_heads(weight, H, weight.shape[1] // G))  # [H, X, V]
        high = by_head.to(dtype)
        if not split or dtype not in HALF:
            return latent @ high
        both = torch.cat([high, (by_head - high).to(dtype)], dim=-2)
        return torch.cat([latent, latent], dim=-1) @ both

    def _weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Softmax in float32 at least, its result in the precision of the products."""
        scores = (query @ key.transpose(-1, -2)).to(torch.promote_types(query.dtype, torch.float32))
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        return torch.softmax(scores + self.mask.to(scores.dtype), dim=-1).to(query.dtype)

    def _for_queries(self, heads: Tensor) -> Tensor:
        """[B, G, N, x] as [B, H, N, x]: each key/value head repeated for its query heads."""
        return heads.repeat_interleave(self.query.shape[1] // heads.shape[1], dim=1)


def product_in(states: Tensor, weight: Any, precision: str = "") -> Tensor:
    """``states`` times a weight [D, Y] in float64, or as int8 rounds it, also for int4."""
    if precision not in INTEGERS:
        return states @ torch.from_numpy(weight)
    integers, scale = quantized_columns(weight)
    return rows_in_int8(states) @ torch.from_numpy(integers * scale.astype(np.float64))


def rows_in_int8(rows: Tensor) -> Tensor:
    """Rows [..., X], rounded to integers of 8 bits with a scale for each row."""
    worth = rows.abs().amax(dim=-1, keepdim=True).clamp_min(SMALLEST) / MOST
    return (rows / worth).round() * worth
