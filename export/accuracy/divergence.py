"""The end of int8 and int4: how far the distribution of the next token moves, and forms that keep it within a budget.

A product's own error does not say what it does to the output: an error in the logits' product changes every token, and
one in a key may change none. So an export measures the whole model too: the int8 graphs are fed the tokens that the
float32 graphs choose, and the divergence is the mean of KL(float32 || int8) over the steps, in nats. It is also what
quantising adds to the mean negative log-probability of text that the float32 model would write: 0.01 nats are 1 % of
the perplexity.

If the divergence exceeds the budget, products get wider forms ("w4a16" -> "int8" -> "w8a16" -> "fp32") until it does
not. Only --precision int4 begins with "w4a16".

1. Each group of products is quantised alone: those of one graph and one shape, which have one role in all layers.
2. The divergence of a small error grows with its square, and independent errors add up. So a product's harm is the
   divergence of its group times the product's share in the group's sum of squared errors.
3. Products are widened in the order of the harm that is saved for each byte that a step then reads or multiplies more,
   until the predicted divergence is within the budget. Then the divergence is measured again, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tightbeam.deploy.bundle.manifest import DivergenceEntry, QuantizedEntry
from tightbeam.export.accuracy.calibration_run import Outputs
from tightbeam.export.accuracy.product_guard import is_allowed, limit, same_bits
from tightbeam.graph_passes.model import Array
from tightbeam.graph_passes.precision.int4 import BYTES
from tightbeam.graph_passes.precision.sites import BITS, FORMS

__all__ = [
    "Widening",
    "divergence",
    "entries_of",
    "steps_before_end",
    "why_not_int4",
    "widened",
    "within_budget",
]

MOST_TRIALS = 6
MARGIN = 0.8
"""The part of the budget to which the prediction is brought: harms do not add up exactly."""
LEAST_SHARE = 0.5
"""The share of the weights that has 4 bits in a bundle in int4, at least: with less, int8 is as good. Tables that no
operator reads in 4 bits do not count."""
COST = {"w4a16": BYTES, "int8": 1.0, "w8a16": 1.25, "fp32": 4.0}
"""Cost of a product in each form, relative to int8: bytes of the matrix, and for "w8a16" the time of 16 rows."""
STORED = {form: BYTES if bits == 4 else bits / 8 for form, bits in BITS.items()}
"""Bytes of a weight in each form."""

Forms = Mapping[str, str]


@dataclass(frozen=True)
class Widening:
    """One measurement on the way to the budget: the forms, and the divergence that they have."""

    forms: dict[str, str]
    divergence: float


def steps_before_end(tokens: Array, end: int | Sequence[int] | None) -> Array:
    """Bool [B, steps]: steps until a sample's end token, and the step that chooses it.

    Parameters
    ----------
    tokens
        int64 [B, steps], the token of each step.
    end
        The end tokens, if the model has any.
    """
    ends = np.isin(tokens, [] if end is None else end)
    return np.cumsum(ends, axis=1) - ends == 0


def divergence(exact: Outputs, other: Array, counted: Array) -> float:
    """Mean of KL(exact || other) in nats.

    Parameters
    ----------
    exact
        The outputs of the float32 graphs.
    other
        Log-probabilities float32 [B, steps, vocabulary] of other graphs, fed the same tokens.
    counted
        Bool [B, steps]: the steps to count.

    Returns
    -------
    float
        At least 0; infinity if ``other`` is NaN or infinite at a token that ``exact`` allows.
    """
    wanted = exact.log_probabilities[counted].astype(np.float64)
    found = other[counted].astype(np.float64)
    with np.errstate(invalid="ignore"):
        terms = np.where(np.isneginf(wanted), 0.0, np.exp(wanted) * (wanted - found))
    mean = float(terms.sum(axis=1).mean())
    return max(0.0, mean) if np.isfinite(mean) else float("inf")


def within_budget(
    entries: Sequence[QuantizedEntry],
    readers: Mapping[str, Sequence[str]],
    measure: Callable[[Forms], float],
    budget: float,
) -> list[Widening]:
    """Widen products until the divergence is within a budget.

    Parameters
    ----------
    entries
        The products and embeddings, with the forms that the guard allows each and its errors in all of them.
    readers
        By the name of each, the names of all that read its matrix: all have it in the same bits.
    measure
        Gives the divergence of forms by name; products without a name here are "int8".
    budget
        Nats a token.

    Returns
    -------
    list of Widening
        Every measurement in order. The last one is within the budget, unless even the widest forms are not. All
        products are float32 if predictions do not lead there.
    """
    forms = {entry.name: str(entry.kept) for entry in entries}
    tried = [Widening(dict(forms), measure(forms))]
    if tried[-1].divergence <= budget:
        return tried
    harms = _harms(entries, forms, measure)
    for _ in range(MOST_TRIALS):
        before = dict(forms)
        target = MARGIN * budget / tried[-1].divergence * _predicted(entries, forms, harms)
        _widen(entries, readers, forms, harms, target)
        if forms == before:
            break
        tried.append(Widening(dict(forms), measure(forms)))
        if tried[-1].divergence <= budget:
            return tried
    widest = dict.fromkeys(forms, "fp32")
    if tried[-1].forms != widest:
        tried.append(Widening(widest, measure(widest)))
    return tried


def widened(entries: Sequence[QuantizedEntry], last: Widening) -> tuple[QuantizedEntry, ...]:
    """The entries with the forms of a measurement; a product that was widened says why."""
    reason = "with less, the divergence of the model exceeds its budget"
    return tuple(
        entry
        if last.forms[entry.name] == entry.kept
        else entry.model_copy(
            update={"kept": last.forms[entry.name], "allowed": limit(last.forms[entry.name]), "reason": reason}
        )
        for entry in entries
    )


def entries_of(
    widenings: Sequence[Widening], entries: Sequence[QuantizedEntry], readers: Mapping[str, Sequence[str]]
) -> tuple[DivergenceEntry, ...]:
    """The measurements as ``bundle.json`` has them."""
    owners = {names[0] for names in readers.values()}
    sizes = {entry.name: int(np.prod(entry.shape)) for entry in entries if entry.name in owners}
    return tuple(
        DivergenceEntry(
            divergence=widening.divergence,
            bytes=round(sum(size * STORED[widening.forms[name]] for name, size in sizes.items())),
            **{form: sum(kept == form for kept in widening.forms.values()) for form in FORMS},
        )
        for widening in widenings
    )


def why_not_int4(
    entries: Sequence[QuantizedEntry], divergences: Sequence[DivergenceEntry], budget: float
) -> str | None:
    """The reason why a model is not worth int4, in one line; None if most of its weights have 4 bits."""
    able = [entry for entry in entries if not entry.embedding or entry.w4a16 is not None]  # no kernels, for example
    numbers = {form: sum(int(np.prod(entry.shape)) for entry in able if entry.kept == form) for form in FORMS}
    share = numbers["w4a16"] / max(1, sum(numbers.values()))
    if share >= LEAST_SHARE:
        return None
    first = divergences[0]
    return (
        f"int4 does not hold: within a divergence of {budget:g} nats a token, {share:.0%} of the weights have 4 bits, "
        f"expected {LEAST_SHARE:.0%} at least; with {first.w4a16} of {len(entries)} products and embeddings in int4 "
        f"the divergence is {first.divergence:.2g}; pass --precision int8, or a larger --max-divergence"
    )


def _harms(entries: Sequence[QuantizedEntry], forms: Forms, measure: Callable[[Forms], float]) -> dict[str, float]:
    """Divergence for each squared error of a product, by its name: that of its graph and shape."""
    groups: dict[tuple[object, ...], list[QuantizedEntry]] = {}
    for entry in entries:
        graph, _, _ = entry.name.partition(".")
        groups.setdefault((graph, entry.shape, entry.embedding), []).append(entry)
    harms: dict[str, float] = {}
    for group in groups.values():
        names = {entry.name for entry in group}
        squares = sum(_square(entry, forms[entry.name]) for entry in group)
        alone = {entry.name: forms[entry.name] if entry.name in names else "fp32" for entry in entries}
        harm = measure(alone) / squares if squares else 0.0
        harms |= dict.fromkeys(names, harm)
    return harms


def _square(entry: QuantizedEntry, form: str) -> float:
    error = _error(entry, form)
    return 0.0 if error is None else error**2


def _error(entry: QuantizedEntry, form: str) -> float | None:
    """The error in a form; None if it was not measured, or is not finite, and in float32."""
    return None if form == "fp32" else getattr(entry, form)


def _predicted(entries: Sequence[QuantizedEntry], forms: Forms, harms: Mapping[str, float]) -> float:
    return sum(harms[entry.name] * _square(entry, forms[entry.name]) for entry in entries)


def _widen(
    entries: Sequence[QuantizedEntry],
    readers: Mapping[str, Sequence[str]],
    forms: dict[str, str],
    harms: Mapping[str, float],
    target: float,
) -> None:
    """Widen products in ``forms``, the most useful first, until the predicted divergence is at most ``target``."""
    errors = {entry.name: {form: _error(entry, form) for form in FORMS} for entry in entries}
    while _predicted(entries, forms, harms) > target:
        best, worth = None, 0.0
        for entry in entries:
            form = forms[entry.name]
            for wider in FORMS[FORMS.index(form) + 1 :]:
                if not is_allowed(wider, errors[entry.name][wider]):
                    continue
                saved = harms[entry.name] * (_square(entry, form) - _square(entry, wider))
                own = saved / ((COST[wider] - COST[form]) * float(np.prod(entry.shape)))
                if own > worth:
                    best, worth = (entry.name, wider), own
        if best is None:
            return
        name, wider = best
        if BITS[wider] > BITS[forms[name]]:
            found = same_bits([errors[reader] for reader in readers[name]], BITS[wider])
            forms |= zip(readers[name], found, strict=True)
        if BITS[wider] == BITS[forms[name]]:
            forms[name] = wider
