"""The guard of int8 caches: the error that each cache gives a layer's attention on real activations.

A row is the key or the value of one head at one position, or in a source cache a position's state, or a position's keys
of all heads if values are made of them. It has one scale: one large number among small ones takes all of its 255 steps.
The attention of each layer is computed with one cache rounded and all else exact, in int8 and in float16, and compared
with float64. A cache that errs more than allowed is refused: attention over float rows in some layers would keep more
bytes than the formula gives. Keys of which values are made get a form in which they err little enough, if there is one
(``guard``). In a decoder-only model both caches are parts of one attention, all of whose rows are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tightbeam.deploy.bundle.manifest import QuantizedCacheEntry
from tightbeam.export.accuracy.activations import AttentionActivations
from tightbeam.export.accuracy.layer_attention import LayerAttention, rows_in_int8
from tightbeam.export.counts import counted
from tightbeam.export.errors import InexactError
from tightbeam.graph_passes import GENERATED, SOURCE, LayerPlan, ModelGraphs
from tightbeam.graph_passes.attention import cross_attention, self_attention
from tightbeam.graph_passes.caches.kind import GeneratedKind, SourceKind

__all__ = ["ALLOWED_BY_CACHE", "INT8_CACHE_OPTIONS", "check_caches", "exact_in_int8", "measure_caches"]

ALLOWED_BY_CACHE = 0.03
"""Largest error of an attention's output by one cache in int8, defined like a product's (``product_guard``)."""
INT8_CACHE_OPTIONS = {"source": "--cache-precision int8", "generated": "--generated-cache-precision int8"}
"""The option that puts each cache in int8."""
Round = Callable[[Tensor], Tensor]


def measure_caches(
    canonical: ModelGraphs, plan: Sequence[LayerPlan], activations: Mapping[str, Sequence[AttentionActivations]]
) -> tuple[QuantizedCacheEntry, ...]:
    """Measure the caches of a plan in int8.

    Parameters
    ----------
    canonical
        The traced graphs, for the weights of each attention.
    plan
        Kinds of cache of each layer: keys and values, keys in a form, or states.
    activations
        For "source", "generated" or both, the activations of each layer's attention over this cache.

    Returns
    -------
    tuple of QuantizedCacheEntry
        For each layer of a cache one of its states, or one of its keys and one of its values, if it caches them.
    """
    entries: list[QuantizedCacheEntry] = []
    for cache, by_layer in activations.items():
        of_self = cache == "generated" or canonical.sizes.one_softmax
        blocks = (self_attention if of_self else cross_attention)(canonical, "guard")
        layers = list(zip(plan, by_layer, strict=True))
        for layer, (choice, seen) in enumerate(counted(layers, f"layers measured, int8 {cache} cache")):
            attention = LayerAttention.of(blocks[layer], seen)
            kind: SourceKind | GeneratedKind = GENERATED[choice.generated]
            if cache == "source":
                kind = SOURCE[choice.source]
                attention = attention.in_form(choice.source_keys, canonical.channels.get(("source", layer)))
            for part, output in _outputs(attention, kind):
                errors = {name: attention.error(output(rounded)) for name, rounded in ROUNDINGS.items()}
                finite = {name: error if error < float("inf") else None for name, error in errors.items()}
                entry = {"layer": layer, "cache": cache, "part": part, "allowed": ALLOWED_BY_CACHE, **finite}
                entries.append(QuantizedCacheEntry.model_validate(entry))
    return tuple(entries)


def exact_in_int8(attention: LayerAttention, kind: SourceKind | GeneratedKind) -> bool:
    """True if the attention over each cache of a kind in int8 errs by no more than is allowed."""
    return all(attention.error(output(rows_in_int8)) <= ALLOWED_BY_CACHE for _, output in _outputs(attention, kind))


def check_caches(entries: Sequence[QuantizedCacheEntry]) -> None:
    """Raise InexactError for the worst cache if one errs more than allowed."""
    worst = max(entries, key=lambda entry: float("inf") if entry.int8 is None else entry.int8)
    if worst.int8 is None or worst.int8 > worst.allowed:
        error = "no finite number" if worst.int8 is None else f"{worst.int8:.1%}"
        raise InexactError(
            f"the {worst.part} of layer {worst.layer} are not exact enough for an int8 {worst.cache} cache: attention "
            f"over them errs by {error}, {worst.allowed:.0%} is allowed; leave {INT8_CACHE_OPTIONS[worst.cache]} out"
        )


ROUNDINGS: dict[str, Round] = {"int8": rows_in_int8, "fp16": lambda rows: rows.to(torch.float16).double()}


def _outputs(
    attention: LayerAttention, kind: SourceKind | GeneratedKind
) -> Iterator[tuple[str, Callable[[Round], Tensor]]]:
    """The caches of a layer, and for each the attention's output with that one rounded."""
    exact = torch.float64
    one_matrix = kind.one_matrix
    if one_matrix is not None and kind.key_forms:
        to_values = one_matrix(attention.W_K, attention.W_V, None).to_values
        yield "keys", lambda rounded: attention.with_cached_rows(rounded).from_keys(to_values, exact)
        return
    if one_matrix is not None:
        yield (
            "states",
            lambda rounded: attention.from_rows(rounded(attention.states), attention.W_K, attention.W_V, exact),
        )
        return
    heads = attention.scored.shape[1]

    def with_values(rounded: Round) -> Tensor:
        B, N, width = attention.value.shape
        values = rounded(attention.value.reshape(B, N, heads, -1)).reshape(B, N, width)
        return replace(attention, value=values).from_keys_and_values(exact)

    yield "keys", lambda rounded: replace(attention, scored=rounded(attention.scored)).from_keys_and_values(exact)
    yield "values", with_values
