"""The guard: the error of each layer's rewritten attention on real activations, before the layer goes into a bundle.

Algebra that is exact on paper amplifies rounding: values that are made of cached keys take a product with W_K^-1, which
multiplies the rounding error of every key. The guard therefore computes the attention of each layer as the bundle will
compute it, at the bundle's precision, and compares it with the original in float64. In int8 the products that
make keys and values round, and an inverse multiplies their error; the attention itself is float32. A layer beyond the
tolerance gets a better conditioned form of its keys (``KeyForm``), or, if no form is exact enough, a safer kind of
cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from tightbeam.deploy.bundle.manifest import GuardEntry
from tightbeam.export.accuracy.activations import AttentionActivations
from tightbeam.export.accuracy.cache_guard import exact_in_int8
from tightbeam.export.accuracy.layer_attention import TORCH_DTYPES, LayerAttention, product_in
from tightbeam.export.counts import counted
from tightbeam.export.errors import ExportError
from tightbeam.graph_passes import GENERATED, SOURCE, KeyForm, LayerPlan, ModelGraphs
from tightbeam.graph_passes.attention import NORM, AttentionBlock, cross_attention, self_attention
from tightbeam.graph_passes.caches.algebra import channel_sizes, few_columns, orthonormal_heads
from tightbeam.graph_passes.caches.cached_keys import CachedKeys
from tightbeam.graph_passes.caches.kind import GeneratedKind, SourceKind
from tightbeam.graph_passes.caches.kinds import PROMPT_PAIRS

__all__ = ["GuardResult", "guard"]

ERROR_RATIO: Mapping[str, float] = {"fp32": 0.1, "fp16": 2.0, "bf16": 2.0, "int8": 2.0, "int4": 2.0}
"""Largest allowed error, in units of the original's error at its baseline precision: twice the original's own in half
precision and in int8; in float32 a tenth of what half precision would add, which is a common price for speed. The
comparison at the end of the export compares the tokens themselves."""
FEW = (8, 16, 32, 64, 128, 256, 512, 1024)
"""Numbers that may be cached beside the keys of a position, rounded up to a multiple of the key heads."""
MOST_FEW = 0.25
"""Largest number of them, over the width of the keys; more would cost what another kind of cache costs."""
ALIGNED_COLUMNS: Mapping[str, int] = {"fp16": 8, "bf16": 8}
"""Columns of a key head of which there are a multiple, so that the tensor cores of a GPU can read its rows."""


@dataclass(frozen=True)
class GuardResult:
    """The error of one layer's attention, relative to its output: root mean squares over all heads and positions.

    ``part``: "source" or "generated". ``wanted`` and ``kept``: the requested kind of cache and the one in the bundle.
    ``error`` and ``allowed``: of the wanted kind, with its keys in the form ``keys``. ``original``: the error of the
    original attention at the same precision. ``condition``: the condition number of the checkpoint's key weights, and
    ``inverted_condition`` that of the inverted ones, in their form; 0 if none is inverted.
    """

    layer: int
    part: str
    wanted: str
    kept: str
    error: float
    allowed: float
    original: float
    condition: float
    keys: KeyForm
    inverted_condition: float

    @property
    def passes(self) -> bool:
        """True if the error is allowed."""
        return self.error <= self.allowed

    def entry(self) -> GuardEntry:
        """The entry of ``bundle.json``; JSON has no infinity, which becomes None."""
        fields = {name: None if value == math.inf else value for name, value in asdict(self).items()}
        return GuardEntry.model_validate(fields)


def guard(
    canonical: ModelGraphs,
    plan: Sequence[LayerPlan],
    activations: tuple[Sequence[AttentionActivations], Sequence[AttentionActivations]],
    precision: str = "fp32",
    cache_precision: str | None = None,
) -> tuple[tuple[LayerPlan, ...], tuple[GuardResult, ...]]:
    """Replace the kinds of cache that are not exact enough by safer ones.

    ``first-k`` is for all layers or none: one layer that caches its states leaves nothing to save for the others.

    Parameters
    ----------
    canonical
        The traced graphs, for the weights of each attention, and for the channels of what keys are made of.
    plan
        The wanted kinds, a layer each.
    activations
        Activations of each layer's attention over the source, and of its attention over the generated part.
    precision
        The bundle's: "fp32", "fp16", "bf16", "int8" or "int4".
    cache_precision
        "int8" for source caches in int8: keys of which values are made get the first form in which they are exact
        enough in int8 too, if there is one.

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
    source_blocks = self_blocks if canonical.sizes.one_softmax else cross_attention(canonical, "guard")
    parts = (
        _LayerAttentions("source", SOURCE, source_blocks, cross_activations, canonical.channels),
        _LayerAttentions("generated", GENERATED, self_blocks, self_activations, canonical.channels),
    )
    measured: list[GuardResult] = []
    for part in parts:
        wanted = [getattr(layer, part.name) for layer in plan]
        groups = _groups(wanted, part.kinds)
        for layers in counted(groups, f"layers measured, {part.name} cache"):
            in_int8 = part.name == "source" and cache_precision is not None
            for found in part.in_first_exact_form(layers, wanted[layers[0]], precision, in_int8=in_int8):
                exact = found.passes
                measured.append(
                    found if exact else replace(found, kept=part.safer(found.layer, found.wanted, precision))
                )
    measured = _all_or_none(measured)
    if canonical.sizes.one_softmax:
        measured = _pairs(plan, measured)
    return _changed(plan, measured, precision), tuple(measured)


def _groups(
    wanted: Sequence[str], kinds: Mapping[str, SourceKind] | Mapping[str, GeneratedKind]
) -> list[tuple[int, ...]]:
    """Layers whose keys have one form: all that read the first one's cache, else each layer alone."""
    groups = []
    for layer, name in enumerate(wanted):
        kind = kinds[name]
        if isinstance(kind, SourceKind) and kind.first_attention is not None:
            if layer == wanted.index(name):
                groups.append(tuple(other for other, same in enumerate(wanted) if same == name))
        elif kind.one_matrix is not None:
            groups.append((layer,))
    return groups


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
        layer = layers[found.layer]
        if found.kept == found.wanted:
            keys: dict[str, Any] = {f"{found.part}_keys": found.keys}
            layers[found.layer] = replace(layer, **keys)
            continue
        if not found.passes:
            because = f": in {precision} its error is {found.error:.1e}, allowed {found.allowed:.1e}"
        elif found.part == "source":
            because = ", as in the other layers"
        else:
            because = ", which goes with the prompt cache of the layer"
        why = f"{found.part} {found.kept} in place of {found.wanted}{because}"
        changes: dict[str, Any] = {found.part: found.kept, "reason": f"{layer.reason}; {why}"}
        layers[found.layer] = replace(layer, **changes)
    return tuple(layers)


@dataclass(frozen=True)
class _Original:
    """One layer's attention, its error at the bundle's precision, and the error that is allowed."""

    layer: int
    attention: LayerAttention
    error: float
    allowed: float


@dataclass(frozen=True)
class _LayerAttentions:
    """The attentions of all layers over the source, or over the generated part."""

    name: str
    kinds: Mapping[str, SourceKind] | Mapping[str, GeneratedKind]
    blocks: Mapping[int, AttentionBlock]
    activations: Sequence[AttentionActivations]
    channels: Mapping[tuple[str, int], Any]

    def in_first_exact_form(
        self, layers: Sequence[int], kind: str, precision: str, *, in_int8: bool = False
    ) -> list[GuardResult]:
        """The errors of layers of one kind, in the first form of their keys in which all of them are exact enough.

        In the last form, if there is no such form. ``in_int8``: they are cached in int8, and exact enough in it too.
        """
        measured: list[GuardResult] = []
        known = self._original(layers[0], precision) if len(layers) == 1 else None
        for keys in self._forms(layers[0], kind, precision):
            measured = [
                self.measure(known or self._original(layer, precision), kind, layers[0], precision, keys)
                for layer in layers
            ]
            if all(found.passes for found in measured) and not (in_int8 and self._errs_in_int8(layers, kind, keys)):
                break
        return [self._with_conditions(found, layers[0]) for found in measured]

    def _errs_in_int8(self, layers: Sequence[int], kind: str, keys: KeyForm) -> bool:
        """True if the keys of some layer are not exact enough in int8; ``cache_guard`` measures them again."""
        formed = (
            LayerAttention.of(self.blocks[layer], self.activations[layer]).in_form(
                keys, self.channels.get((self.name, layer))
            )
            for layer in layers
        )
        return not all(exact_in_int8(attention, self.kinds[kind]) for attention in formed)

    def safer(self, layer: int, kind: str, precision: str) -> str:
        """The first of the safer kinds that is exact enough; keys and values themselves always are.

        Keys that positions or a norm change after their product with W_K cannot be made of anything else.
        """
        while self.kinds[kind := self.kinds[kind].safer].one_matrix is not None:
            if not self.blocks[layer].between:
                original = self._original(layer, precision)
                if self.measure(original, kind, layer, precision, KeyForm()).passes:
                    break
        return kind

    def _forms(self, layer: int, kind: str, precision: str) -> list[KeyForm]:
        """Forms of the keys of a layer, the cheapest first.

        Keys that positions or a norm change after their product with W_K stay as they are, and there is nothing beside
        those of a norm. The few numbers are whole columns of each key head, and aligned to 16 bytes in half precision.
        """
        between = self.blocks[layer].between
        if not self.kinds[kind].key_forms or NORM in between:
            return [KeyForm()]
        orthonormal = not between
        _, G, _, K = self.activations[layer].key.shape
        columns = ALIGNED_COLUMNS.get(precision, 1)
        counts = dict.fromkeys(G * columns * math.ceil(r / (G * columns)) for r in FEW)
        few = [KeyForm(orthonormal, r) for r in counts if r <= MOST_FEW * G * K]
        return [KeyForm(), *([KeyForm(orthonormal=True)] if orthonormal else []), *few]

    def _original(self, layer: int, precision: str) -> _Original:
        attention = LayerAttention.of(self.blocks[layer], self.activations[layer])
        error = attention.error(attention.with_products_in(precision).from_keys_and_values(TORCH_DTYPES[precision]))
        if TORCH_DTYPES[precision] == torch.float32 and not np.isfinite(error):
            raise ExportError(
                f"the attention of decoder layer {layer} is NaN or infinite for the calibration texts; fix its "
                "weights, or the config's numbers (rope_parameters, for one)"
            )
        return _Original(layer, attention, error, ERROR_RATIO[precision] * attention.baseline_error(precision))

    def measure(self, original: _Original, kind: str, first: int, precision: str, keys: KeyForm) -> GuardResult:
        """The error of one kind in one layer; ``first``: the first layer of the kind, whose keys have the form."""
        layer, attention = original.layer, original.attention
        dtype = TORCH_DTYPES[precision]
        is_first = layer == first
        if is_first:
            attention = attention.in_form(keys, self.channels.get((self.name, layer)))
        one_matrix = self.kinds[kind].one_matrix
        assert one_matrix is not None
        form = one_matrix(attention.W_K, attention.W_V, None if is_first else self._key_weight(first, keys))
        lowered = attention.with_products_in(precision)
        if form.to_keys is None:
            found = lowered.from_keys(form.to_values, dtype)
        else:
            states = attention.states
            rows = states if form.of_inputs is None else product_in(states, form.of_inputs, precision)
            found = lowered.from_rows(rows, form.to_keys, form.to_values, dtype, split=form.inverted is not None)
        error = original.attention.error(found)
        return GuardResult(layer, self.name, kind, kind, error, original.allowed, original.error, 0.0, keys, 0.0)

    def _with_conditions(self, found: GuardResult, first: int) -> GuardResult:
        """The result with the conditions of the weight that its kind inverts, if it inverts one."""
        if not self.kinds[found.wanted].inverts:
            return found
        of_checkpoint = self._inverted_condition(found, first, KeyForm())
        own = of_checkpoint if found.keys == KeyForm() else self._inverted_condition(found, first, found.keys)
        return replace(found, condition=of_checkpoint, inverted_condition=own)

    def _inverted_condition(self, found: GuardResult, first: int, keys: KeyForm) -> float:
        W_V = self.blocks[found.layer].value.weight.values
        one_matrix = self.kinds[found.wanted].one_matrix
        assert one_matrix is not None
        if found.layer == first:
            form = one_matrix(self._key_weight(first, keys), W_V, None)
        else:
            form = one_matrix(self._key_weight(found.layer, KeyForm()), W_V, self._key_weight(first, keys))
        assert form.inverted is not None
        # with a few more numbers: of inputs whose channels are alike, by which these numbers are chosen
        sizes = channel_sizes(self.channels.get((self.name, first)) if keys.few else None, len(form.inverted))
        return _condition_number(sizes * form.inverted)

    def _key_weight(self, layer: int, keys: KeyForm) -> Any:
        """The key weights of a layer in a form, [D, G K + r]."""
        weight = CachedKeys.of(self.blocks[layer]).weight
        if keys.orthonormal:
            weight, _ = orthonormal_heads(weight, self.activations[layer].key.shape[1])
        if not keys.few:
            return weight
        return np.concatenate([weight, few_columns(weight, keys.few, self.channels.get((self.name, layer)))], axis=1)


def _condition_number(W_K: Any) -> float:
    """The largest singular value over the smallest one."""
    values = torch.linalg.svdvals(torch.from_numpy(np.asarray(W_K, np.float64)))
    smallest = float(values[-1])
    return float(values[0]) / smallest if smallest else float("inf")
