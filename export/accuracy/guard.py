"""The guard: the error of each layer's rewritten attention on real activations, before the layer goes into a bundle.

Algebra that is exact on paper amplifies rounding: values that are made of cached keys take a product with W_K^-1, which
multiplies the rounding error of every key. The guard therefore computes the attention of each layer as the bundle will
compute it, at the bundle's precision, and compares it with the original in float64. In int8 the products that
make keys and values round, and an inverse multiplies their error; the attention itself is float32. A layer beyond the
tolerance gets a safer kind of cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tightbeam.deploy.bundle.manifest import GuardEntry
from tightbeam.export.accuracy.activations import AttentionActivations
from tightbeam.export.accuracy.layer_attention import TORCH_DTYPES, LayerAttention, product_in
from tightbeam.export.counts import counted
from tightbeam.export.errors import ExportError
from tightbeam.graph_passes import GENERATED, SOURCE, LayerPlan, ModelGraphs
from tightbeam.graph_passes.attention import AttentionBlock, cross_attention, self_attention
from tightbeam.graph_passes.caches.cached_keys import CachedKeys
from tightbeam.graph_passes.caches.kind import GeneratedKind, SourceKind
from tightbeam.graph_passes.caches.kinds import PROMPT_PAIRS

__all__ = ["GuardResult", "guard"]

ERROR_RATIO: Mapping[str, float] = {"fp32": 0.1, "fp16": 2.0, "bf16": 2.0, "int8": 2.0}
"""Largest allowed error, in units of the original's error at its baseline precision: twice the original's own in half
precision and in int8; in float32 a tenth of what half precision would add, which is a common price for speed. The
comparison at the end of the export compares the tokens themselves."""


@dataclass(frozen=True)
class GuardResult:
    """The error of one layer's attention, relative to its output: root mean squares over all heads and positions.

    ``part``: "source" or "generated". ``wanted`` and ``kept``: the requested kind of cache and the one in the bundle.
    ``error`` and ``allowed``: of the wanted kind. ``original``: the error of the original attention at the same
    precision. ``condition``: the condition number of the inverted key weights; 0 if none is inverted.
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
        A result for each cache that is not keys and values.

    Raises
    ------
    ExportError
        The original attention of a layer gives NaN or infinite numbers in float32.
    """
    cross_activations, self_activations = activations
    self_blocks = self_attention(canonical, "guard")
    source_blocks = self_blocks if canonical.sizes.decoder_only else cross_attention(canonical, "guard")
    parts = (
        _LayerAttentions("source", SOURCE, source_blocks, cross_activations),
        _LayerAttentions("generated", GENERATED, self_blocks, self_activations),
    )
    measured: list[GuardResult] = []
    for part in parts:
        wanted = [getattr(layer, part.name) for layer in plan]
        for layer, kind in enumerate(counted(wanted, f"layers measured, {part.name} cache")):
            if part.kinds[kind].one_matrix is None:
                continue
            found = part.measure(layer, kind, wanted.index(kind), precision)
            if not found.error <= found.allowed:
                found = replace(found, kept=part.safer(layer, kind, precision))
            measured.append(found)
    measured = _all_or_none(measured)
    if canonical.sizes.decoder_only:
        measured = _pairs(plan, measured)
    return _changed(plan, measured, precision), tuple(measured)


def _all_or_none(measured: list[GuardResult]) -> list[GuardResult]:
    """Replace a kind that reads the first layer's cache in all layers, if it is not exact enough for one of them."""
    of_first = {kind.name for kind in SOURCE.values() if kind.first_attention is not None}
    lost = {found.wanted: found.kept for found in reversed(measured) if found.wanted in of_first - {found.kept}}
    return [replace(found, kept=lost.get(found.kept, found.kept)) for found in measured]


def _pairs(plan: Sequence[LayerPlan], measured: list[GuardResult]) -> list[GuardResult]:
    """Replace a generated cache that does not go with its layer's prompt cache by the safer one that does."""
    source = [layer.source for layer in plan]
    for found in measured:
        if found.part == "source":
            source[found.layer] = found.kept
    return [
        replace(found, kept=_that_goes_with(source[found.layer], found.kept)) if found.part == "generated" else found
        for found in measured
    ]


def _that_goes_with(source: str, generated: str) -> str:
    while generated not in PROMPT_PAIRS[source]:
        generated = GENERATED[generated].safer
    return generated


def _changed(plan: Sequence[LayerPlan], measured: Sequence[GuardResult], precision: str) -> tuple[LayerPlan, ...]:
    layers = list(plan)
    for found in measured:
        if found.kept == found.wanted:
            continue
        layer = layers[found.layer]
        if not found.error <= found.allowed:
            because = f": in {precision} its error is {found.error:.1e}, allowed {found.allowed:.1e}"
        elif found.part == "source":
            because = ", as in the other layers"
        else:
            because = ", which goes with the prompt cache of the layer"
        why = f"{found.part} {found.kept} in place of {found.wanted}{because}"
        layers[found.layer] = replace(layer, **{found.part: found.kept}, reason=f"{layer.reason}; {why}")
    return tuple(layers)


@dataclass(frozen=True)
class _LayerAttentions:
    """The attentions of all layers over the source, or over the generated part."""

    name: str
    kinds: Mapping[str, SourceKind] | Mapping[str, GeneratedKind]
    blocks: Mapping[int, AttentionBlock]
    activations: Sequence[AttentionActivations]

    def safer(self, layer: int, kind: str, precision: str) -> str:
        """The first of the safer kinds that is exact enough; keys and values themselves always are.

        Keys that positions or a norm change after their product with W_K cannot be made of anything else.
        """
        while self.kinds[kind := self.kinds[kind].safer].one_matrix is not None:
            if not self.blocks[layer].between:
                found = self.measure(layer, kind, layer, precision)
                if found.error <= found.allowed:
                    break
        return kind

    def measure(self, layer: int, kind: str, first: int, precision: str) -> GuardResult:
        """The error of one kind in one layer; ``first``: the first layer of the kind."""
        attention = LayerAttention.of(self.blocks[layer], self.activations[layer])
        dtype = TORCH_DTYPES[precision]
        lowered = attention.with_products_in(precision)
        original = attention.error(lowered.from_keys_and_values(dtype))
        if dtype == torch.float32 and not np.isfinite(original):
            raise ExportError(
                f"the attention of decoder layer {layer} is NaN or infinite for the calibration texts; fix its "
                "weights, or the config's numbers (rope_parameters, for one)"
            )
        baseline = attention.baseline_error(precision)
        W_K1 = None if layer == first else CachedKeys.of(self.blocks[first]).weight
        one_matrix = self.kinds[kind].one_matrix
        assert one_matrix is not None
        form = one_matrix(attention.W_K, attention.W_V, W_K1)
        condition = 0.0 if form.inverted is None else _condition_number(form.inverted)
        if form.to_keys is None:
            found = lowered.from_keys(form.to_values, dtype)
        else:
            states = attention.states
            rows = states if form.of_inputs is None else product_in(states, form.of_inputs, precision)
            found = lowered.from_rows(rows, form.to_keys, form.to_values, dtype)
        error = attention.error(found)
        return GuardResult(layer, self.name, kind, kind, error, ERROR_RATIO[precision] * baseline, original, condition)


def _condition_number(W_K: Any) -> float:
    """The largest singular value over the smallest one."""
    values = torch.linalg.svdvals(torch.from_numpy(np.asarray(W_K, np.float64)))
    smallest = float(values[-1])
    return float(values[0]) / smallest if smallest else float("inf")
