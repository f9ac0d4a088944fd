"""The guard: how exact each layer's rewritten attention is, on real activations, before it goes into a bundle.

What is exact in algebra need not be so in floating point: keys that stand in for values are multiplied by W_K^-1, and
with it the rounding of every key. So the attention of each layer is computed as the bundle will compute it, at the
bundle's precision, and compared with the original in float64. A layer beyond the tolerance keeps something safer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tightbeam.export.accuracy.activations import AttentionActivations
from tightbeam.export.errors import ExportError
from tightbeam.graph_passes import LayerPlan, ModelGraphs
from tightbeam.graph_passes.attention import AttentionBlock, cross_attention, self_attention
from tightbeam.graph_passes.caches.algebra import key_heads, right_inverse_times, value_heads
from tightbeam.graph_passes.caches.cached_keys import CachedKeys

__all__ = ["PRECISIONS", "GuardResult", "guard", "needs_guard"]

PRECISIONS: Mapping[str, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

BASELINE_PRECISION: Mapping[str, str] = {"fp32": "fp16", "fp16": "fp16", "bf16": "bf16"}
"""Precision of the original attention whose error bounds that of the rewritten one."""
ERROR_RATIO: Mapping[str, float] = {"fp32": 0.1, "fp16": 2.0, "bf16": 2.0}
"""Largest allowed error, in units of the original's error at ``BASELINE_PRECISION``: twice the original's own in half
precision; in float32 a tenth of what half precision would add, which is a common price for speed. The comparison at the
end of the export compares the tokens themselves."""

SAFER: Mapping[str, Mapping[str, str]] = {
    "source": {"k": "states", "first-k": "states", "states": "kv"},
    "generated": {"k": "x", "x": "kv"},
}
"""What a layer keeps instead. Kinds that are not here keep the keys and values themselves."""


@dataclass(frozen=True)
class GuardResult:
    """The error of one layer's attention, relative to its output: root mean squares over all heads and positions.

    ``part``: "source" or "generated". ``wanted`` and ``kept``: kinds of cache. ``condition``: that of the key weights
    that had to be undone; 0 where none had to. ``original``: the error of the original attention at the same precision.
    """

    layer: int
    part: str
    wanted: str
    kept: str
    error: float
    allowed: float
    original: float
    condition: float


def needs_guard(plan: Sequence[LayerPlan]) -> bool:
    """Whether some layer is to keep anything else than keys and values."""
    return any(layer.source in SAFER["source"] or layer.generated in SAFER["generated"] for layer in plan)


def guard(
    canonical: ModelGraphs,
    plan: Sequence[LayerPlan],
    activations: tuple[Sequence[AttentionActivations], Sequence[AttentionActivations]],
    precision: str = "fp32",
) -> tuple[tuple[LayerPlan, ...], tuple[GuardResult, ...]]:
    """The plan with safer kinds where the wanted ones are not exact enough, and what was measured.

    ``activations``: of the layers' attentions over the source and over the generated part. ``first-k`` is for all
    layers or none: beside the states, it would save nothing.
    """
    cross, own = activations
    own_blocks = self_attention(canonical, "guard")
    source_blocks = own_blocks if canonical.sizes.decoder_only else cross_attention(canonical, "guard")
    parts = {"source": _Part("source", source_blocks, cross), "generated": _Part("generated", own_blocks, own)}
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
                kept = SAFER[name][kind] if part.may_stand_in(layer) else "kv"
                if kept in SAFER[name]:
                    other = part.measure(layer, kept, layer, precision)
                    kept = kept if other.error <= other.allowed else "kv"
            measured.append(replace(found, kept=kept))
    measured = _all_or_none(measured)
    return _changed(plan, measured, precision), tuple(measured)


def _all_or_none(measured: list[GuardResult]) -> list[GuardResult]:
    """Where one layer cannot read the first layer's keys, all read the states."""
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
class _Part:
    """The attentions of all layers over the source, or over the generated part."""

    name: str
    blocks: Mapping[int, AttentionBlock]
    seen: Sequence[AttentionActivations]

    def may_stand_in(self, layer: int) -> bool:
        """Whether anything else than keys can be kept for keys: not where positions or norms change them."""
        return not self.blocks[layer].between

    def measure(self, layer: int, kind: str, first: int, precision: str) -> GuardResult:
        """The error of one kind in one layer; ``first``: the layer whose keys ``first-k`` keeps."""
        attention = _Attention.of(self.blocks[layer], self.seen[layer])
        dtype = PRECISIONS[precision]
        original = attention.error(attention.from_keys_and_values(dtype))
        if precision == "fp32" and not np.isfinite(original):
            raise ExportError(
                f"the attention of decoder layer {layer} gives no finite numbers for the calibration texts; mend its "
                "weights, or the config's numbers (rope_parameters, for one)"
            )
        half = attention.error_in_half(precision)
        condition = 0.0
        if kind in ("states", "x"):
            found = attention.from_rows(attention.inputs, attention.W_K, attention.W_V, dtype)
        else:
            W_K = CachedKeys.of(self.blocks[first if kind == "first-k" else layer]).weight
            condition = _condition(W_K)
            if kind == "k" or layer == first:
                found = attention.from_keys(right_inverse_times(W_K, attention.W_V), dtype)
            else:
                keys = attention.inputs @ torch.from_numpy(W_K)
                found = attention.from_rows(
                    keys, right_inverse_times(W_K, attention.W_K), right_inverse_times(W_K, attention.W_V), dtype
                )
        error = attention.error(found)
        return GuardResult(layer, self.name, kind, kind, error, ERROR_RATIO[precision] * half, original, condition)


@dataclass(frozen=True)
class _Attention:
    """One attention in float64, without key and value biases, which fold away."""

    inputs: Tensor  # [B, N, D]
    query: Tensor  # [B, H, T, K], scaled
    key: Tensor  # [B, N, G K], as it is kept
    key_bias: Tensor  # [G K], what of it values are not made of: 0 where the bias is folded
    scored: Tensor  # [B, G, N, K], as queries meet it: turned by positions, where the model does that
    value: Tensor  # [B, N, G V]
    mask: Tensor  # [B, 1 or H, T, N]
    W_K: Any  # [D, G K]
    W_V: Any  # [D, G V]

    @classmethod
    def of(cls, block: AttentionBlock, seen: AttentionActivations) -> _Attention:
        inputs = seen.inputs.double()
        kept = CachedKeys.of(block)
        W_K, W_V = kept.weight, np.asarray(block.value.weight.values, np.float64)
        B, G, N, K = seen.key.shape
        bias = torch.zeros(G * K, dtype=torch.float64)
        if block.between and kept.bias is not None:
            bias = torch.from_numpy(kept.bias)
        key = inputs @ torch.from_numpy(W_K) + bias
        return cls(
            inputs=inputs,
            query=seen.query.double() * seen.scale,
            key=key,
            key_bias=bias,
            scored=seen.key.double() if block.between else key.reshape(B, N, G, K).transpose(1, 2),
            value=inputs @ torch.from_numpy(W_V),
            mask=seen.mask.double(),
            W_K=W_K,
            W_V=W_V,
        )

    @cached_property
    def exact(self) -> Tensor:
        """Outputs [B, H, T, V] in float64."""
        return self.from_keys_and_values(torch.float64)

    def error(self, found: Tensor) -> float:
        """Of outputs [B, H, T, V], relative to the exact ones; infinite where one is no number."""
        exact = self.exact
        counted = torch.isfinite(exact)
        difference = (found.double() - exact)[counted].square().mean().sqrt()
        if difference == 0:  # also where the layer gives nothing but zeros
            return 0.0
        error = difference / exact[counted].square().mean().sqrt()
        return float(error) if torch.isfinite(error) else float("inf")

    def error_in_half(self, precision: str) -> float:
        """What half precision makes of the attention as it was. Activations beyond the range of float16 are measured in
        bfloat16, whose numbers have 3 bits less; nothing may err where that fails too."""
        half = self.error(self.from_keys_and_values(PRECISIONS[BASELINE_PRECISION[precision]]))
        if np.isfinite(half):
            return half
        wide = self.error(self.from_keys_and_values(torch.bfloat16)) / 8
        return wide if np.isfinite(wide) else 0.0

    def from_keys_and_values(self, dtype: torch.dtype) -> Tensor:
        """The attention as it was."""
        B, N, _ = self.value.shape
        values = self._for_queries(self.value.reshape(B, N, self.scored.shape[1], -1).transpose(1, 2))
        keys = self._for_queries(self.scored)
        return self._weights(self.query.to(dtype), keys.to(dtype)) @ values.to(dtype)

    def from_keys(self, W_KV: Any, dtype: torch.dtype) -> Tensor:
        """Values made of the keys, after the softmax."""
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
        """[B, G, N, x] as [B, H, N, x], each head once for every query head that reads it."""
        return heads.repeat_interleave(self.query.shape[1] // heads.shape[1], dim=1)


def _condition(W_K: Any) -> float:
    """The largest singular value over the smallest."""
    values = torch.linalg.svdvals(torch.from_numpy(np.asarray(W_K, np.float64)))
    smallest = float(values[-1])
    return float(values[0]) / smallest if smallest else float("inf")
