"""The guard: the error of each layer's rewritten attention on real activations, before the layer goes into a bundle.

Algebra that is exact on paper amplifies rounding: values that are made of cached keys take a product with W_K^-1, which
multiplies the rounding error of every key. The guard therefore computes the attention of each layer as the bundle will
compute it, at the bundle's precision, and compares it with the original in float64. In int8 it is the products that
give keys and values that round, so that an inverse multiplies that; attention is float32. A layer beyond the tolerance
gets a safer kind of cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tightbeam.deploy.bundle.manifest import GuardEntry
from tightbeam.export.accuracy.activations import AttentionActivations
from tightbeam.export.accuracy.safer_kinds import SAFER
from tightbeam.export.errors import ExportError
from tightbeam.graph_passes import LayerPlan, ModelGraphs
from tightbeam.graph_passes.attention import AttentionBlock, cross_attention, self_attention
from tightbeam.graph_passes.caches.algebra import key_heads, right_inverse_times, value_heads
from tightbeam.graph_passes.caches.cached_keys import CachedKeys
from tightbeam.graph_passes.precision.integers import MOST, quantized_columns

__all__ = ["GuardResult", "guard"]

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "int8": torch.float32,
}
"""Type of the attention itself, by the bundle's precision."""
BASELINE_PRECISION: Mapping[str, str] = {"fp32": "fp16", "fp16": "fp16", "bf16": "bf16", "int8": "int8"}
"""Precision of the original attention whose error bounds that of the rewritten one."""
ERROR_RATIO: Mapping[str, float] = {"fp32": 0.1, "fp16": 2.0, "bf16": 2.0, "int8": 2.0}
"""Largest allowed error, in units of the original's error at ``BASELINE_PRECISION``: twice the original's own in half
precision and in int8; in float32 a tenth of what half precision would add, which is a common price for speed. The
comparison at the end of the export compares the tokens themselves."""


@dataclass(frozen=True)
class GuardResult:
    """The error of one layer's attention, relative to its output: root mean squares over all heads and positions.

    ``part``: "source" or "generated". ``wanted`` and ``kept``: the requested kind of cache and the one in the bundle.
    ``error`` and ``allowed``: of the wanted kind. ``original``: the error of the original attention at the same
    precision. ``condition``: the condition number of the key weights that are inverted; 0 where none are.
    """

    layer: int
    part: str
    wanted: str
    kept: str
    error: float
    allowed: float
    original: float
    condition: float

    def entry(self) -> GuardEntry:
        """The entry of ``bundle.json``; JSON has no infinity, which becomes None."""
        fields = {name: None if value == math.inf else value for name, value in vars(self).items()}
        return GuardEntry.model_validate(fields)


def guard(
    canonical: ModelGraphs,
    plan: Sequence[LayerPlan],
    activations: tuple[Sequence[AttentionActivations], Sequence[AttentionActivations]],
    precision: str = "fp32",
) -> tuple[tuple[LayerPlan, ...], tuple[GuardResult, ...]]:
    """Replace the kinds of cache that are not exact enough by safer ones.

    ``first-k`` is for all layers or none: one layer that caches its states leaves nothing to save for the others.

    Parameters
    ----------
    canonical
        The traced graphs, for the weights of each attention.
    plan
        The wanted kinds, a layer each.
    activations
        Activations of each layer's attention over the source, and of its attention over the generated part.
    precision
        The bundle's: "fp32", "fp16", "bf16" or "int8".

    Returns
    -------
    tuple of LayerPlan
        The plan with safer kinds, and the reason for each.
    tuple of GuardResult
        A result for each cache that needs the guard.

    Raises
    ------
    ExportError
        The original attention of a layer gives NaN or infinite numbers in float32.
    """
    cross_activations, self_activations = activations
    self_blocks = self_attention(canonical, "guard")
    source_blocks = self_blocks if canonical.sizes.decoder_only else cross_attention(canonical, "guard")
    parts = {
        "source": _LayerAttentions("source", source_blocks, cross_activations),
        "generated": _LayerAttentions("generated", self_blocks, self_activations),
    }
    wanted = {"source": [layer.source for layer in plan], "generated": [layer.generated for layer in plan]}
    measured: list[GuardResult] = []
    for name, part in parts.items():
        kinds = wanted[name]
        for layer, kind in enumerate(kinds):
            if kind not in SAFER[name]:
                continue
            found = part.measure(layer, kind, kinds.index(kind), precision)
            kept = kind
            if not found.error <= found.allowed:
                kept = SAFER[name][kind] if part.keys_are_linear(layer) else "kv"
                if kept in SAFER[name]:
                    other = part.measure(layer, kept, layer, precision)
                    kept = kept if other.error <= other.allowed else "kv"
            measured.append(replace(found, kept=kept))
    measured = _all_or_none(measured)
    return _changed(plan, measured, precision), tuple(measured)


def _all_or_none(measured: list[GuardResult]) -> list[GuardResult]:
    """Drop ``first-k`` from all layers where the first layer's keys are not exact enough for one of them."""
    lost = [found for found in measured if found.wanted == "first-k" != found.kept]
    if not lost:
        return measured
    return [replace(found, kept=lost[0].kept) if found.kept == "first-k" else found for found in measured]


def _changed(plan: Sequence[LayerPlan], measured: Sequence[GuardResult], precision: str) -> tuple[LayerPlan, ...]:
    layers = list(plan)
    for found in measured:
        if found.kept == found.wanted:
            continue
        layer = layers[found.layer]
        why = (
            f"{found.part} {found.kept} in place of {found.wanted}: in {precision} its error is {found.error:.1e}, "
            f"allowed {found.allowed:.1e}"
            if not found.error <= found.allowed
            else f"{found.part} {found.kept} in place of {found.wanted}, as in the other layers"
        )
        layers[found.layer] = replace(layer, **{found.part: found.kept}, reason=f"{layer.reason}; {why}")
    return tuple(layers)


@dataclass(frozen=True)
class _LayerAttentions:
    """The attentions of all layers over the source, or over the generated part."""

    name: str
    blocks: Mapping[int, AttentionBlock]
    activations: Sequence[AttentionActivations]

    def keys_are_linear(self, layer: int) -> bool:
        """True where keys are a product with W_K alone; positions or norms after it leave no other form of cache."""
        return not self.blocks[layer].between

    def measure(self, layer: int, kind: str, first: int, precision: str) -> GuardResult:
        """The error of one kind in one layer; ``first``: the layer whose keys ``first-k`` caches."""
        attention = _Attention.of(self.blocks[layer], self.activations[layer])
        dtype = TORCH_DTYPES[precision]
        lowered = attention.with_products_in(precision)
        original = attention.error(lowered.from_keys_and_values(dtype))
        if dtype == torch.float32 and not np.isfinite(original):
            raise ExportError(
                f"the attention of decoder layer {layer} gives no finite numbers for the calibration texts; fix its "
                "weights, or the config's numbers (rope_parameters, for one)"
            )
        baseline = attention.baseline_error(precision)
        condition = 0.0
        if kind in ("states", "x"):
            found = lowered.from_rows(attention.states, attention.W_K, attention.W_V, dtype)
        else:
            W_K = CachedKeys.of(self.blocks[first if kind == "first-k" else layer]).weight
            condition = _condition_number(W_K)
            if kind == "k" or layer == first:
                found = lowered.from_keys(right_inverse_times(W_K, attention.W_V), dtype)
            else:
                keys = _product(attention.states, W_K, precision)
                found = lowered.from_rows(
                    keys, right_inverse_times(W_K, attention.W_K), right_inverse_times(W_K, attention.W_V), dtype
                )
        error = attention.error(found)
        return GuardResult(layer, self.name, kind, kind, error, ERROR_RATIO[precision] * baseline, original, condition)


@dataclass(frozen=True)
class _Attention:
    """One attention in float64, without key and value biases, which fold away."""

    states: Tensor  # [B, N, D], what keys and values are projected from
    query: Tensor  # [B, H, T, K], scaled
    key: Tensor  # [B, N, G K], as cached
    key_bias: Tensor  # [G K], the part of the cached key that values are not made of; 0 where the bias is folded
    scored: Tensor  # [B, G, N, K], as multiplied with queries: rotated, where the model has rotary positions
    value: Tensor  # [B, N, G V]
    mask: Tensor  # [B, 1 or H, T, N]
    W_K: Any  # [D, G K]
    W_V: Any  # [D, G V]

    @classmethod
    def of(cls, block: AttentionBlock, activations: AttentionActivations) -> _Attention:
        states = activations.states.double()
        cached = CachedKeys.of(block)
        W_K, W_V = cached.weight, np.asarray(block.value.weight.values, np.float64)
        B, G, N, K = activations.key.shape
        bias = torch.zeros(G * K, dtype=torch.float64)
        if block.between and cached.bias is not None:
            bias = torch.from_numpy(cached.bias)
        key = _product(states, W_K) + bias
        return cls(
            states=states,
            query=activations.query.double() * activations.scale,
            key=key,
            key_bias=bias,
            scored=activations.key.double() if block.between else key.reshape(B, N, G, K).transpose(1, 2),
            value=_product(states, W_V),
            mask=activations.mask.double(),
            W_K=W_K,
            W_V=W_V,
        )

    def with_products_in(self, precision: str) -> _Attention:
        """The same where keys and values are products in int8; itself in other precisions, which ``dtype`` stands for.

        Keys that are rotated before they are multiplied with queries keep these products exact.
        """
        if precision != "int8":
            return self
        key = _product(self.states, self.W_K, precision) + self.key_bias
        B, G, N, K = self.scored.shape
        is_cached = bool((self.scored.transpose(1, 2).reshape(B, N, G * K) == self.key).all())
        scored = key.reshape(B, N, G, K).transpose(1, 2) if is_cached else self.scored
        return replace(self, key=key, scored=scored, value=_product(self.states, self.W_V, precision))

    @cached_property
    def exact(self) -> Tensor:
        """Outputs [B, H, T, V] in float64."""
        return self.from_keys_and_values(torch.float64)

    def error(self, found: Tensor) -> float:
        """Error of outputs [B, H, T, V], relative to the exact ones; infinite where one is NaN or infinite."""
        exact = self.exact
        counted = torch.isfinite(exact)
        difference = (found.double() - exact)[counted].square().mean().sqrt()
        if difference == 0:  # also where the layer gives nothing but zeros
            return 0.0
        error = difference / exact[counted].square().mean().sqrt()
        return float(error) if torch.isfinite(error) else float("inf")

    def baseline_error(self, precision: str) -> float:
        """Error of the original attention at ``BASELINE_PRECISION``.

        Activations beyond the range of float16 are measured in bfloat16, whose mantissa has 3 bits less; 0, so that no
        error is allowed, where that fails too.
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
        """Values made of the cached keys, after the softmax."""
        keys = self.key.to(dtype)
        weights = self._weights(self.query.to(dtype), self._for_queries(self.scored).to(dtype))
        of_bias = self._values(self.key_bias.to(dtype)[None, None, None], W_KV, dtype)
        return self._values(weights @ keys[:, None], W_KV, dtype) - of_bias

    def from_rows(self, rows: Tensor, W_K: Any, W_V: Any, dtype: torch.dtype) -> Tensor:
        """Keys and values both made of ``rows`` [B, N, X], with W_K [X, G K] and W_V [X, G V]."""
        H, K = self.query.shape[1], self.query.shape[3]
        by_head = torch.from_numpy(key_heads(W_K, H, K)).to(dtype)  # [H, K, X]
        weights = self._weights(self.query.to(dtype) @ by_head, rows[:, None].to(dtype))
        return self._values(weights @ rows[:, None].to(dtype), W_V, dtype)

    def _values(self, latent: Tensor, weight: Any, dtype: torch.dtype) -> Tensor:
        H = self.query.shape[1]
        G = self.scored.shape[1]
        return latent @ torch.from_numpy(value_heads(weight, H, weight.shape[1] // G)).to(dtype)

    def _weights(self, query: Tensor, key: Tensor) -> Tensor:
        """Softmax in float32 at least, its result in the precision of the products."""
        scores = (query @ key.transpose(-1, -2)).to(torch.promote_types(query.dtype, torch.float32))
        return torch.softmax(scores + self.mask.to(scores.dtype), dim=-1).to(query.dtype)

    def _for_queries(self, heads: Tensor) -> Tensor:
        """[B, G, N, x] as [B, H, N, x]: each key/value head repeated for its query heads."""
        return heads.repeat_interleave(self.query.shape[1] // heads.shape[1], dim=1)


def _product(states: Tensor, weight: Any, precision: str = "") -> Tensor:
    """``states`` times a weight [D, Y] in float64, or as int8 rounds it."""
    if precision != "int8":
        return states @ torch.from_numpy(weight)
    integers, scale = quantized_columns(weight)
    worth = states.abs().amax(dim=-1, keepdim=True).clamp_min(1e-30) / MOST
    rows = (states / worth).round() * worth
    return rows @ torch.from_numpy(integers * scale.astype(np.float64))


def _condition_number(W_K: Any) -> float:
    """The largest singular value over the smallest one."""
    values = torch.linalg.svdvals(torch.from_numpy(np.asarray(W_K, np.float64)))
    smallest = float(values[-1])
    return float(values[0]) / smallest if smallest else float("inf")
